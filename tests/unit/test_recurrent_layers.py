"""What the layers with a recurrent state hold, and how many requests vLLM's warm-up may have for them."""

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_specext.engine.config import SpecExtConfig
from vllm_specext.engine.hooks import runner_patches, warm_up_patches
from vllm_specext.engine.recurrent import gated_delta, kind, layers, state_space
from vllm_specext.engine.recurrent.kind import RecurrentKind
from vllm_specext.engine.recurrent.layers import RecurrentLayers
from vllm_specext.engine.recurrent.metadata import OneStateMetadata


def configuration(schedule: list[list[int]]) -> Any:
    speculative = SpecExtConfig.__new__(SpecExtConfig)
    speculative.num_speculative_tokens_per_batch_size = schedule
    return SimpleNamespace(
        speculative_config=speculative,
        scheduler_config=SimpleNamespace(max_num_seqs=1024, max_num_batched_tokens=8192),
        compilation_config=SimpleNamespace(max_cudagraph_capture_size=64, static_forward_context={}),
    )


def runner(config: Any) -> Any:
    return SimpleNamespace(vllm_config=config, scheduler_config=config.scheduler_config, decode_query_len=25)


def served_in_warm_up(config: Any, fail: bool = False) -> int:
    seen = []

    def stock(model_runner: Any, *args: Any) -> None:
        seen.append(model_runner.scheduler_config.max_num_seqs)
        if fail:
            raise MemoryError

    warm = warm_up_patches._warmup_kernels(stock)
    if fail:
        with pytest.raises(MemoryError):
            warm(runner(config), None, None)
    else:
        warm(runner(config), None, None)
    assert config.scheduler_config.max_num_seqs == 1024
    return seen[0]


def test_the_warm_up_has_as_many_requests_as_rows_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration([[1, 4, 24], [5, 16, 4], [17, 1024, 0]])
    assert served_in_warm_up(config) == 1024  # no such layers
    monkeypatch.setattr(layers, "recurrent_layers", lambda config: (gated_delta.KIND, {"one": None}))
    assert served_in_warm_up(config) == 4  # of more, fewer tokens are drafted, or none
    assert served_in_warm_up(configuration([[1, 4, 24]])) == 4
    assert served_in_warm_up(configuration([[1, 4, 24]]), fail=True) == 4
    others = configuration([[1, 4, 24]])
    others.speculative_config = None
    assert served_in_warm_up(others) == 1024


DELTA: dict[str, Any] = {
    "conv1d": SimpleNamespace(weight=torch.zeros(8, 1, 4)),
    "A_log": torch.zeros(2),
    "num_k_heads": 1,
    "num_v_heads": 2,
}
SPACE: dict[str, Any] = {
    "conv1d": SimpleNamespace(bias=None),
    "conv_weights": torch.zeros(8, 4),
    "A": torch.zeros(2),
    "D": torch.zeros(2),
    "num_heads": 2,
    "n_groups": 1,
    "mamba_config": SimpleNamespace(enable_stochastic_rounding=False),
}


@pytest.mark.parametrize(("of", "own"), [(gated_delta.KIND, DELTA), (state_space.KIND, SPACE)], ids=["delta", "space"])
def test_caches_that_are_to_go_are_held_by_nothing(of: RecurrentKind, own: dict[str, Any]) -> None:
    module = SimpleNamespace(
        **own,
        dt_bias=torch.zeros(2),
        tp_size=1,
        conv_dim=8,
        conv_kernel_size=4,
        kv_cache=(torch.zeros(3, 3, 8), torch.zeros(3, 2, 4, 2)),
    )
    config = configuration([[1, 1, 2]])
    config.model_config = SimpleNamespace(dtype=torch.float32)
    config.speculative_config = SimpleNamespace(levels=2, schedule=[[1, 1, 2]])
    unwrapped = replace(of, wrap=lambda module, verifier: None)
    made = RecurrentLayers(unwrapped, {"one": module}, config, torch.device("cpu"))
    (layer,) = made._layers.values()
    layer.now()
    held = weakref.ref(module.kv_cache[1])
    module.kv_cache = ()
    gc.collect()
    assert held() is not None  # or this test shows nothing
    made.forget_caches()
    gc.collect()
    assert held() is None


def test_the_runner_has_earlier_caches_forgotten_before_it_makes_others() -> None:
    calls: list[str] = []
    initialize = runner_patches._initialize_kv_cache(lambda self, *args: calls.append("made"))
    state = SimpleNamespace(forget_caches=lambda: calls.append("forgotten"))
    initialize(SimpleNamespace(model_state=state, vllm_config=SimpleNamespace(speculative_config=None)), None)
    assert calls == ["forgotten", "made"]


def test_rows_of_no_request_get_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM leaves them to the layer, and later layers may find a scale for all rows."""
    steps: dict[str, Any] = {}
    monkeypatch.setattr(kind, "get_forward_context", lambda: SimpleNamespace(attn_metadata=steps))
    module = SimpleNamespace(
        prefix="one", tped_intermediate_size=4, tped_conv_size=8, tped_dt_size=2, head_dim=2,
        get_kv_cache_spec=None, conv_ssm_forward=lambda projected_states, output: output.fill_(2),
    )  # fmt: skip

    class Verifier:
        def verify(self, step: Any, mixed: torch.Tensor, gates: Any, out: torch.Tensor) -> None:
            assert (mixed.shape, gates[0].shape, out.shape) == ((6, 8), (6, 2), (6, 2, 2))
            out[: step.trees.num_rows] = 1

    state_space.wrap(module, Verifier())

    def given(others: Any) -> list[float]:
        table = torch.zeros(1, 1, dtype=torch.int32)
        slots = torch.zeros(2, 1, dtype=torch.int32)
        steps["one"] = OneStateMetadata(drafted=1, table=table, block=None, slots_and_ends=slots, others=others)
        steps["one"].trees = SimpleNamespace(num_rows=4)
        output = torch.full((6, 4), torch.nan)
        module.conv_ssm_forward(torch.zeros(6, 14), output)
        return output[:, 0].tolist()

    assert given(None) == [1, 1, 1, 1, 0, 0]
    assert given("vLLM's") == [1, 1, 1, 1, 2, 2]
