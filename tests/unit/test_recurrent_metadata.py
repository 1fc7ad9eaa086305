"""Where recurrent states stay for a cache of prefixes."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specext.engine.verification.recurrent_metadata import caches_prefixes
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
