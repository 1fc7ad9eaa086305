"""Where recurrent states stay for a cache of prefixes, and how large they are."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM

from tests.engine.hybrid import RECURRENT
from vllm_specext.engine.config import SpecExtConfig
from vllm_specext.engine.verification.recurrent_metadata import caches_prefixes
from vllm_specext.engine.verification.state_pages import without_drafts
from vllm_specext.errors import ConfigurationError


def config(mode: str, drafted: int) -> Any:
    return SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode=mode), num_speculative_tokens=drafted)


def test_states_stay_where_prefixes_are_cached() -> None:
    assert caches_prefixes(config("align", 59), 64)
    assert not caches_prefixes(config("none", 59), 32)


@pytest.mark.parametrize(
    ("mode", "drafted", "said"),
    [("align", 64, "'num_speculative_tokens' is 64, .*--no-enable-prefix-caching"), ("all", 8, "mamba-cache-mode")],
)
def test_what_cannot_be_kept_is_refused(mode: str, drafted: int, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        caches_prefixes(config(mode, drafted), 64)


def test_our_drafts_make_no_state_larger() -> None:
    """vLLM's own make it larger, and have to."""
    text = SimpleNamespace(**RECURRENT)

    def shape(speculative_config: Any) -> Any:
        config = SimpleNamespace(
            speculative_config=speculative_config,
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
            model_config=SimpleNamespace(hf_config=text, hf_text_config=text),
        )
        made: list[Any] = []
        size = without_drafts(
            lambda seen, backend: made.append(Qwen3NextForCausalLM.get_mamba_state_shape_from_config(seen))
        )
        size(config, None)
        assert config.speculative_config is speculative_config
        return made

    ours, theirs = SpecExtConfig.__new__(SpecExtConfig), SimpleNamespace(num_speculative_tokens=8)
    assert shape(ours) == shape(None) != shape(theirs)
