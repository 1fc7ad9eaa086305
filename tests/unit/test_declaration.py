"""What vLLM's configuration says of a method follows from the method's declaration."""

from typing import Any

import pytest
from vllm.config import ModelConfig

from vllm_specext.declaration import Keeps
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import GRIFFIN_TREE, MOA_TREE, MODELS, SLEM, SWIFT, TARGET
from vllm_specext.registry import METHODS


def configuration(speculative: dict[str, Any] | None, **flags: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    from vllm_specext.plugin import register

    register()
    arguments = EngineArgs(
        model=str(TARGET),
        dtype="float32",
        max_model_len=512,
        kv_cache_memory_bytes=1 << 28,
        speculative_config=speculative,
        **flags,
    )
    return arguments.create_engine_config()


@pytest.mark.parametrize(
    ("speculative", "own_layers", "drops_a_block"),
    [(GRIFFIN_TREE, True, True), (MOA_TREE, True, False), (SWIFT, False, False), (SLEM, False, False)],
    ids=["griffin", "moa", "swift", "slem"],
)
def test_vllm_is_told_where_keys_are_kept_and_whether_a_cached_block_is_stale(
    speculative: dict[str, Any], own_layers: bool, drops_a_block: bool
) -> None:
    config = configuration(speculative)
    assert config.speculative_config.use_eagle() == own_layers
    assert config.speculative_config.use_eagle_block_drop() == drops_a_block
    assert config.num_prefill_lookahead_tokens == int(own_layers)


def test_griffins_stale_block_can_be_kept() -> None:
    config = configuration(GRIFFIN_TREE | {"disable_eagle_block_drop": True})
    assert not config.speculative_config.use_eagle_block_drop()


def test_only_what_lies_in_vllms_cache_can_be_stale_there() -> None:
    stale = [method.declares.keeps for method in METHODS.values() if method.declares.last_block_stale]
    assert set(stale) == {Keeps.BESIDE_THE_TARGETS}


@pytest.mark.parametrize("is_moe", [False, True])
def test_independent_engines_choose_for_themselves_how_much_to_draft(
    is_moe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelConfig, "is_moe", property(lambda self: is_moe))
    chain = GRIFFIN_TREE | {"tree_top_k": 1, "num_speculative_tokens": 4, "adaptive_drafts": True}
    chain.pop("num_speculative_tokens_per_batch_size", None)
    assert configuration(chain).speculative_config.adapts
    assert configuration(chain, data_parallel_size=2).speculative_config.adapts != is_moe


@pytest.mark.parametrize("is_moe", [False, True])
def test_independent_ranks_keep_the_schedule_and_ranks_in_step_do_not(
    is_moe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data-parallel ranks of a dense target do not know of each other."""
    config = configuration(GRIFFIN_TREE)
    monkeypatch.setattr(type(config.model_config), "is_moe", property(lambda self: is_moe))
    config.parallel_config.data_parallel_size = 2
    schedule = config.speculative_config.num_speculative_tokens_per_batch_size
    assert schedule
    config._maybe_disable_dynamic_sd_for_data_parallel()
    assert config.speculative_config.num_speculative_tokens_per_batch_size == (None if is_moe else schedule)


def test_vllms_short_flags_stand_for_keys_of_our_methods_too() -> None:
    flags = {"spec_method": "griffin", "spec_model": GRIFFIN_TREE["model"], "spec_tokens": 24}
    config = configuration(None, **flags).speculative_config
    assert (config.method, config.model, config.num_speculative_tokens) == tuple(flags.values())
    dropped = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size")
    rest = {key: value for key, value in GRIFFIN_TREE.items() if key not in dropped}
    assert configuration(rest, spec_tokens=12).speculative_config.num_speculative_tokens == 12


@pytest.mark.parametrize("flag", ["spec_method", "spec_model", "spec_tokens"])
def test_a_key_that_is_given_twice_is_an_error(flag: str) -> None:
    value = {"spec_method": "griffin", "spec_model": "x", "spec_tokens": 3}[flag]
    with pytest.raises(ConfigurationError, match=f"is given twice, with --{flag.replace('_', '-')}"):
        configuration(GRIFFIN_TREE, **{flag: value})


def test_a_method_that_reads_predictions_is_refused_what_given_is_refused() -> None:
    griffin = {"method": "griffin", "model": str(MODELS / "griffin"), "num_speculative_tokens": 4, "tree_top_k": 1}
    configuration(griffin, kv_cache_dtype="fp8_e5m2")
    with pytest.raises(ConfigurationError, match=r"^method 'griffin with predictions' .*--kv-cache-dtype"):
        configuration(griffin | {"prediction_tokens": 8}, kv_cache_dtype="fp8_e5m2")
