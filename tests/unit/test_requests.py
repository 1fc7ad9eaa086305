"""Every kind of request is drafted what its sampling parameters allow, and a wrong switch is refused by name."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from vllm_specext.engine import requests
from vllm_specext.engine.requests import Drafting, drafting_of, has_custom_processors, validate

TREES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "seed": 3},
    {"min_tokens": 5, "stop": ["x"], "stop_token_ids": [7]},
    {"logit_bias": {3: 1.0}, "allowed_token_ids": [1, 2]},
    {"logprobs": 3, "prompt_logprobs": 2},
    {"extra_args": {"speculation": 1}},
    {"extra_args": {"speculation": True}},
    {"extra_args": {"other": 0}},
    {"presence_penalty": 0.5},
    {"presence_penalty": -0.5},
    {"frequency_penalty": 0.5},
    {"repetition_penalty": 1.1},
    {"repetition_penalty": 0.9},
    {"bad_words": ["no"]},
    {"structured_outputs": StructuredOutputsParams(regex="a+")},
    {"thinking_token_budget": 0},
]


@pytest.mark.parametrize("params", TREES, ids=str)
def test_what_vllm_itself_does_with_logits_is_done_on_trees(params: dict[str, Any]) -> None:
    assert drafting_of(SamplingParams(**params), custom_processors=False) is Drafting.TREE


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
@pytest.mark.parametrize("ignores", [False, True])
def test_a_grammar_of_guidance_that_goes_on_after_its_end_is_drafted_nothing(backend: str, ignores: bool) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+"), ignore_eos=ignores)
    assert params.structured_outputs is not None
    params.structured_outputs._backend = backend
    expected = Drafting.OFF if ignores and backend == "guidance" else Drafting.TREE
    assert drafting_of(params, custom_processors=False) is expected


def test_custom_logits_processors_make_every_request_a_chain() -> None:
    assert drafting_of(SamplingParams(), custom_processors=True) is Drafting.CHAIN


@pytest.mark.parametrize("off", [False, 0])
@pytest.mark.parametrize("params", [{}, {"thinking_token_budget": 9}])
def test_a_request_that_switches_speculation_off_is_drafted_nothing(off: Any, params: dict[str, Any]) -> None:
    params = SamplingParams(**params, extra_args={"speculation": off})
    assert drafting_of(params, custom_processors=True) is Drafting.OFF
    assert drafting_of(None, custom_processors=False) is Drafting.OFF


def test_custom_processors_are_those_of_the_command_line_and_installed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_custom_processors(SimpleNamespace(logits_processors=None))
    assert has_custom_processors(SimpleNamespace(logits_processors=["module:Processor"]))
    requests._are_processors_installed.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(requests, "entry_points", lambda group: [group] if group == "vllm.logits_processors" else [])
        assert has_custom_processors(SimpleNamespace(logits_processors=None))
    requests._are_processors_installed.cache_clear()


@pytest.mark.parametrize("params", [*TREES, {"extra_args": {"speculation": False}}], ids=str)
def test_every_kind_of_request_is_valid(params: dict[str, Any]) -> None:
    validate(SamplingParams(**params))


@pytest.mark.parametrize("value", ["false", "off", 2, None, [0]])
def test_a_switch_that_is_neither_true_nor_false_is_refused_by_name(value: Any) -> None:
    with pytest.raises(VLLMValidationError, match="'speculation' must be true or false") as caught:
        validate(SamplingParams(extra_args={"speculation": value}))
    assert caught.value.parameter == "speculation"


def test_vllm_still_refuses_under_its_own_methods_what_we_allow() -> None:
    """Otherwise the wrapper of its check is no longer needed."""
    from vllm_specext.engine.hooks.patches import install

    install()
    with pytest.raises(VLLMValidationError, match="min_p and logit_bias"):
        SamplingParams(min_p=0.5)._validate_spec_decode(SimpleNamespace(method="eagle"))


@pytest.mark.parametrize(("written", "drafting"), [("false", Drafting.OFF), ("true", Drafting.TREE)])
def test_the_switch_survives_the_openai_api(written: str, drafting: Drafting) -> None:
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    arguments = json.loads(f'{{"speculation": {written}}}')
    params = CompletionRequest(model="m", prompt="x", vllm_xargs=arguments).to_sampling_params(
        max_tokens=4, default_sampling_params={}
    )
    validate(params)
    assert drafting_of(params, custom_processors=False) is drafting


@pytest.mark.parametrize("draws", [False, True])
def test_the_switch_is_checked_for_drawn_drafts_too_and_vllm_refuses_more_of_those(
    monkeypatch: pytest.MonkeyPatch, draws: bool
) -> None:
    from vllm_specext.engine import config
    from vllm_specext.engine.hooks.front_end_patches import _validate_spec_decode

    monkeypatch.setattr(config, "is_ours", lambda _: True)
    ours = SimpleNamespace(options=SimpleNamespace(samples_drafts=draws))
    passed_on: list[SamplingParams] = []
    check = _validate_spec_decode(lambda params, _: passed_on.append(params))
    check(SamplingParams(min_p=0.5), ours)
    assert len(passed_on) == draws
    with pytest.raises(VLLMValidationError, match="'speculation' must be true or false"):
        check(SamplingParams(extra_args={"speculation": "off"}), ours)
