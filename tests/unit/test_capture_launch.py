"""Capturing is configured like a method, refuses what it cannot do in one sentence, and is shown to nobody."""

from typing import Any

import pytest

from tests.unit.test_declaration import configuration
from vllm_specext.engine.config import reads_aux_states
from vllm_specext.engine.report import configured
from vllm_specext.errors import ConfigurationError
from vllm_specext.registry import CAPTURE, METHODS, RUNNABLE

SMALL: dict[str, Any] = {"method": "capture", "capture_tokens": 1024}


def capturing(**keys: Any) -> Any:
    return configuration(SMALL | keys, enable_prefix_caching=False)


def test_nothing_is_drafted_at_any_load_and_no_slot_is_kept_for_drafts() -> None:
    config = capturing()
    assert config.speculative_config.sizes == [0]
    assert config.num_lookahead_tokens == 0
    assert config.use_v2_model_runner
    assert not config.speculative_config.use_eagle()
    told = dict(configured(config))
    assert (told["Drafts"], told["Drafter"]) == ("none", "none")
    assert told["Drafted tokens by number of running requests"] == "from 1: none"


def test_layers_states_are_asked_for_where_they_are_kept() -> None:
    assert not reads_aux_states(capturing().speculative_config)
    assert reads_aux_states(capturing(aux_layers=[2, 6, 9]).speculative_config)


def test_it_is_no_method_that_is_shown() -> None:
    assert CAPTURE.name not in METHODS
    assert list(RUNNABLE) == [*METHODS, CAPTURE.name]
    with pytest.raises(ConfigurationError, match=r"'medusa-2', but allowed are griffin") as error:
        configuration({"method": "medusa-2"})
    assert CAPTURE.name not in str(error.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"aux_layers": []}, ["'aux_layers'", "[]", "1 item"]),
        ({"aux_layers": [2, 6, 12]}, ["'aux_layers'", "[2, 6, 12]", "1 to 11"]),
        ({"aux_layers": [0, 6, 9]}, ["'aux_layers'", "[0, 6, 9]", "1 to 11"]),
        ({"aux_layers": [6, 2, 9]}, ["'aux_layers'", "[6, 2, 9]", "larger"]),
        ({"aux_layers": [2, 2, 9]}, ["'aux_layers'", "[2, 2, 9]", "larger"]),
        ({"capture_tokens": 2**26}, ["'capture_tokens'", str(2**26), "GiB"]),
        ({"capture_tokens": 0}, ["'capture_tokens'", "0", "1"]),
        ({"feature_dtype": "float8"}, ["'feature_dtype'", "'float8'", "'bfloat16'"]),
        ({"num_speculative_tokens": 2}, ["'num_speculative_tokens'", "2", "1"]),
        ({"num_speculative_tokens_per_batch_size": [[1, 2, 1]]}, ["_per_batch_size'", "[[1, 2, 1]]", "None"]),
        ({"model": "drafter"}, ["'model'", "unknown", "capture_tokens"]),
    ],
    ids=str,
)
def test_a_bad_key_is_one_sentence(keys: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        capturing(**keys)
    sentence = str(error.value)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize("cached", [None, True])
def test_cached_prefixes_are_refused(cached: bool | None) -> None:
    with pytest.raises(ConfigurationError, match=r"^--enable-prefix-caching is (None|True).*no hidden states\.$"):
        configuration(SMALL, enable_prefix_caching=cached)


def test_a_target_whose_class_does_not_give_its_layers_states_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_specext.methods.stock.prepare.supports_eagle3", lambda model: False)
    capturing()
    with pytest.raises(ConfigurationError, match=r"^method 'capture' .*'LlamaForCausalLM'.* its layers\.$"):
        capturing(aux_layers=[2, 6, 9])


def test_what_was_not_tried_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^method .capture. cannot be combined with --enable-lora"):
        configuration(SMALL, enable_prefix_caching=False, enable_lora=True)
