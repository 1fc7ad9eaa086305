"""A key of a request that nothing reads is refused by name, and one that something may read is not."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from vllm_specext.engine import requests
from vllm_specext.engine.request_keys import VLLMS, check_keys
from vllm_specext.options.base import Predicted

KNOWN = (requests.SWITCH, *VLLMS)

MISSPELT = ["speculatoin", "Speculation", "speculation_", "spekulation", "peculation", "no_speculation"]
OTHERS = ["speculative", "specification", "calculation", "ngram_size"]


def config(
    processors: list[str] | None = None, scheduler: str | None = None, predicted: Predicted | None = None
) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(options=SimpleNamespace(predicted=predicted, takes_clients_trees=False)),
        model_config=SimpleNamespace(logits_processors=processors),
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler),
    )


WITH_READERS = {"processors": config(processors=["module:Processor"]), "scheduler": config(scheduler="module.Own")}


@pytest.fixture
def _installed_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    requests._are_processors_installed.cache_clear()
    monkeypatch.setattr(requests, "entry_points", lambda group: [group])
    yield
    requests._are_processors_installed.cache_clear()


def with_key(key: Any) -> SamplingParams:
    return SamplingParams(extra_args={key: 0})


@pytest.mark.parametrize("key", [*MISSPELT, *OTHERS, 7])
def test_a_key_that_nothing_reads_is_refused_by_name_with_the_known_ones(key: Any) -> None:
    with pytest.raises(VLLMValidationError) as caught:
        check_keys(with_key(key), config())
    sentence = str(caught.value)
    assert all(word in sentence for word in (repr(key), "unknown key", *KNOWN))


@pytest.mark.parametrize("readers", WITH_READERS)
def test_where_others_may_read_keys_only_a_misspelling_of_ours_is_refused(readers: str) -> None:
    for key in OTHERS:
        check_keys(with_key(key), WITH_READERS[readers])
    for key in MISSPELT:
        with pytest.raises(VLLMValidationError, match=f"'{key}' is an unknown key"):
            check_keys(with_key(key), WITH_READERS[readers])


@pytest.mark.usefixtures("_installed_processors")
def test_installed_processors_may_read_keys_too() -> None:
    check_keys(with_key("ngram_size"), config())


@pytest.mark.parametrize("extra_args", [None, {}, *({key: 0} for key in KNOWN)], ids=str)
def test_known_keys_are_accepted(extra_args: dict[str, Any] | None) -> None:
    check_keys(SamplingParams(extra_args=extra_args), config())


def test_a_prediction_is_known_where_the_method_reads_it() -> None:
    prediction = SamplingParams(extra_args={requests.PREDICTION: [1]})
    check_keys(prediction, config(predicted=Predicted(32)))
    with pytest.raises(VLLMValidationError, match="'prediction_token_ids' is an unknown key"):
        check_keys(prediction, config())
    for readers in (config(predicted=Predicted(32)), config(["module:Processor"], predicted=Predicted(32))):
        with pytest.raises(VLLMValidationError, match=r"unknown key .* known are .*prediction_token_ids"):
            check_keys(with_key("prediction_tokens_ids"), readers)


def test_all_that_vllm_reads_is_known() -> None:
    folder = Path(vllm.__file__).parent
    reads = re.compile(r"(?:extra_args|vllm_xargs)\s*\.get\(\s*\"(\w+)\"")
    found = {key for path in folder.rglob("*.py") for key in reads.findall(path.read_text(encoding="utf-8"))}
    of_logits_processors = {"ngram_size", "window_size", "whitelist_token_ids"}
    assert of_logits_processors < found
    assert found - of_logits_processors == set(VLLMS)
