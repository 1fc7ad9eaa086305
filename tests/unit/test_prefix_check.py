"""What is tried of FlashAttention 3 at start, with torch in its place."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine import apart
from vllm_specext.engine.drafting import warm_up
from vllm_specext.engine.verification import prefix_attention, prefix_check, verifying_layers
from vllm_specext.engine.verification.prefix_attention import PrefixAttention
from vllm_specext.engine.verification.prefix_check import is_right
from vllm_specext.engine.verification.verifying_layers import Verifies

CACHE = torch.Size((99, 2, 16, 64))
CPU = torch.device("cpu")


class OfTorch(PrefixAttention):
    def __call__(self, query: Tensor, *others: Any) -> Tensor:
        return apart.over_prefixes(query.float(), *others, scale=self.scale)


class WithTheLengthsOfTheCapture(OfTorch):
    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, rows: Any, out: Tensor) -> Tensor:  # type: ignore[override]
        lens = torch.tensor(prefix_check.CAPTURED, dtype=torch.int32)
        stale = SimpleNamespace(**vars(rows) | {"prefix_lens": torch.minimum(lens, rows.prefix_lens)})
        return super().__call__(query, keys, values, stale, out)


class WithNaN(OfTorch):
    def __call__(self, *given: Any) -> Tensor:
        return super().__call__(*given) * torch.nan


class WithoutSums(OfTorch):
    def __call__(self, *given: Any) -> Tensor:
        return torch.zeros_like(super().__call__(*given))


@pytest.fixture(autouse=True)
def nodes_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend_to_nodes(query: Tensor, *others: Any, **told: Any) -> None:
        apart._attend_to_nodes(query.float(), *others, **told)

    monkeypatch.setattr(prefix_attention, "attend_to_nodes", attend_to_nodes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("kind", "right"), [(OfTorch, True), (WithTheLengthsOfTheCapture, False), (WithNaN, False), (WithoutSums, False)]
)
def test_what_is_right_is_used_and_what_is_not_is_noticed(
    kind: type[PrefixAttention], right: bool, dtype: torch.dtype
) -> None:
    assert is_right(kind(0.2, 0.0), CACHE, 4, dtype, CPU, 4096) is right


def test_a_long_context_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch gathers the slots of the longest request in float32, and a million tokens would not fit."""
    seen: list[int] = []
    stock = prefix_check.naive.plan
    monkeypatch.setattr(prefix_check.naive, "plan", lambda rows: (seen.append(rows.max_seq_len), stock(rows))[1])
    assert is_right(OfTorch(0.2, 0.0), CACHE, 4, torch.float32, CPU, 1 << 20)
    assert max(seen) < 2000


def test_other_random_numbers_stay_as_they_are() -> None:
    before = torch.get_rng_state()
    is_right(OfTorch(0.2, 0.0), CACHE, 4, torch.float32, CPU, 4096)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("right", [True, False])
def test_layers_of_a_kind_that_is_not_right_have_tree_attention_for_all(
    monkeypatch: pytest.MonkeyPatch, right: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def layer(heads: int, splits: bool = True) -> Any:
        impl = SimpleNamespace(vllm_specext_verifies=Verifies(OfTorch(0.2, 0.0) if splits else None))
        return SimpleNamespace(impl=impl, layer_name="model.layers.0", num_heads=heads, kv_cache=torch.empty(CACHE))

    tried: list[int] = []

    def answers(attend: Any, cache: Any, heads: int, *others: Any) -> bool:
        tried.append(heads)
        return right or heads == 8

    monkeypatch.setattr(warm_up, "is_right", answers)
    said: list[str] = []
    monkeypatch.setattr(warm_up.logger, "warning", lambda text, *given: said.append(text % given))
    layers = [layer(4), layer(8), layer(4), layer(4, splits=False)]
    warm_up.check_prefixes([layers[:2], layers[2:]], 4096, torch.bfloat16)
    assert tried == [4, 8]
    assert [verifying_layers.over_prefixes(each) is not None for each in layers] == [right, True, right, False]
    assert len(said) == (0 if right else 1)
    assert all("'model.layers.0'" in text for text in said)
