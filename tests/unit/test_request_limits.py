"""A request that would make vLLM's V2 sampler raise in the worker, and so end the engine, is refused before it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401  # on a CPU the runner's modules need it first
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState

from vllm_specext.engine.requests import check_room


def params(bad_words: list[list[int]] | None = None, ends: tuple[int, ...] = (), **keys: Any) -> SamplingParams:
    """As they go to the worker: ``ends`` are the model's own stop tokens, ``bad_words`` those of the words."""
    made = SamplingParams(**keys)
    made.update_from_generation_config({"eos_token_id": list(ends)})
    made._bad_words_token_ids = bad_words
    return made


FULL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "allowed_token_ids": (
        {"allowed_token_ids": list(range(1024))},
        {"allowed_token_ids": list(range(1025))},
    ),
    "logit_bias": (
        {"logit_bias": dict.fromkeys(range(1024), 1.0)},
        {"logit_bias": dict.fromkeys(range(1025), 1.0)},
    ),
    "stop_token_ids": (
        {"min_tokens": 1, "stop_token_ids": list(range(126)), "ends": (200, 201)},
        {"min_tokens": 1, "stop_token_ids": list(range(126)), "ends": (200, 201, 202)},
    ),
    "bad_words": (
        {"bad_words": [[7] * 16] * 64},
        {"bad_words": [[7] * 16] * 64 + [[7]]},
    ),
}
"""What just fits, and one more."""


@pytest.fixture
def samplers() -> list[Any]:
    """The parts of vLLM's sampler whose buffers are limited, for one request."""
    states = SimpleNamespace(max_num_reqs=1, device=torch.device("cpu"), prompt_len=SimpleNamespace(np=np.zeros(1)))
    return [LogitBiasState(None, states), BadWordsState(None, states)]


@pytest.mark.parametrize("parameter", FULL)
def test_what_just_fits_is_accepted_by_us_and_by_the_sampler(parameter: str, samplers: list[Any]) -> None:
    fits = params(**FULL[parameter][0])
    check_room(fits)
    assert sum(sampler.add_request(0, fits) for sampler in samplers) == 1


@pytest.mark.parametrize("parameter", FULL)
def test_one_more_is_refused_by_name_where_the_sampler_would_raise(parameter: str, samplers: list[Any]) -> None:
    too_many = params(**FULL[parameter][1])
    with pytest.raises(
        VLLMValidationError, match=rf"'{parameter}' makes \d+ .* but at most \d+ are supported"
    ) as caught:
        check_room(too_many)
    assert caught.value.parameter == parameter
    with pytest.raises(ValueError, match="Too many"):
        sum(sampler.add_request(0, too_many) for sampler in samplers)


def test_stop_tokens_without_min_tokens_take_no_room(samplers: list[Any]) -> None:
    stops = params(stop_token_ids=list(range(200)))
    check_room(stops)
    assert not any(sampler.add_request(0, stops) for sampler in samplers)


@pytest.mark.parametrize("ours", [True, False])
def test_the_limits_hold_for_engines_with_our_methods_only(monkeypatch: pytest.MonkeyPatch, ours: bool) -> None:
    from vllm_specext.engine import config
    from vllm_specext.engine.hooks.front_end_patches import _process_inputs

    method = SimpleNamespace(options=SimpleNamespace(predicted=None, takes_clients_trees=False))
    monkeypatch.setattr(config, "is_ours", lambda speculative_config: speculative_config is method)
    asked = SimpleNamespace(speculative_config=method if ours else "eagle", model_config=None)
    engine = SimpleNamespace(vllm_config=asked)
    for refused in (FULL["logit_bias"][1], {"extra_args": {"speculatoin": False}}):
        made = SimpleNamespace(sampling_params=params(**refused))
        process_inputs = _process_inputs(lambda self, request_id, made=made: made)
        if ours:
            with pytest.raises(VLLMValidationError, match=r"logit_bias|speculatoin"):
                process_inputs(engine, "1")
        else:
            assert process_inputs(engine, "1") is made
