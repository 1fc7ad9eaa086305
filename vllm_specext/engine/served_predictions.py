"""What a server whose method reads predictions does with that of a request, and with the usage of its answer."""

import json
from collections.abc import AsyncIterator
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.renderers.params import TokenizeParams

from vllm_specext.engine.config import SpecExtConfig, is_ours
from vllm_specext.engine.predictions import PredictionCount, check_ids, text_of, too_long
from vllm_specext.engine.requests import PREDICTION, TokenIds
from vllm_specext.options.base import Predicted


async def take_prediction(serving: Any, request: Any) -> None:
    """Put the token ids of the request's ``prediction`` into its ``vllm_xargs``, where it has one and the method reads
    it. ``serving`` is vLLM's for this kind of request. Raises ``VLLMValidationError``, which is answered with 400,
    before an answer begins."""
    if _predicted(serving) is None:
        return
    prediction, given = getattr(request, "prediction", None), (request.vllm_xargs or {}).get(PREDICTION)
    if prediction is not None:
        if given is not None:
            raise VLLMValidationError(
                f"The prediction is given twice, as 'prediction' and as {PREDICTION!r} in 'vllm_xargs'.",
                parameter="prediction",
            )
        given = await _tokens(serving, text_of(prediction))
    if given is not None:
        check_ids(given, serving.model_config)
        request.vllm_xargs = {**(request.vllm_xargs or {}), PREDICTION: TokenIds(given)}


async def _tokens(serving: Any, text: str) -> list[int]:
    """The target's tokens of ``text``, which can be a whole answer. What cannot be one is not tokenised to its end."""
    most = serving.model_config.max_model_len
    if serving.model_config.skip_tokenizer_init:
        raise VLLMValidationError(
            f"The prediction is a text, which a server with --skip-tokenizer-init cannot read; give its token ids as "
            f"{PREDICTION!r} in 'vllm_xargs'.",
            parameter="prediction",
        )
    if len(text) > most * serving.renderer.get_tokenizer().max_chars_per_token:
        raise too_long(f"{len(text)} characters", most)
    cut = TokenizeParams(max_total_tokens=most + 1, truncate_prompt_tokens=most + 1, add_special_tokens=False)
    ids: list[int] = (await serving.renderer.tokenize_prompt_async({"prompt": text}, cut))["prompt_token_ids"]
    if len(ids) > most:
        raise too_long("more tokens", most)
    return ids


def count_for(serving: Any, request: Any) -> PredictionCount | None:
    """A count for the answer to a request with a prediction; ``None`` for others."""
    predicted, ids = _predicted(serving), (request.vllm_xargs or {}).get(PREDICTION)
    return None if predicted is None or ids is None else PredictionCount(ids, predicted.match)


def _predicted(serving: Any) -> Predicted | None:
    config: SpecExtConfig = serving.engine_client.vllm_config.speculative_config
    return None if not is_ours(config) or config.options is None else config.options.predicted


def take(count: PredictionCount, prompt: int, result: Any) -> None:
    """Count the tokens of vLLM's ``RequestOutput`` for one of the request's prompts."""
    for output in result.outputs:
        count.take((prompt, output.index), output.token_ids)


async def observed(results: Any, count: PredictionCount) -> AsyncIterator[Any]:
    """The same results; their tokens are counted. Completions have the prompt's number beside each."""
    async for each in results:
        take(count, *(each if isinstance(each, tuple) else (0, each)))
        yield each


async def in_last_usage(count: PredictionCount, events: AsyncIterator[str]) -> AsyncIterator[str]:
    """The same events of a stream, of which the one with the usage alone gets the numbers."""
    async for event in events:
        yield _with_details(event, count)


def _with_details(event: str, count: PredictionCount) -> str:
    # In a text, the quotes would be escaped.
    if '"usage":{' not in event:
        return event
    chunk = json.loads(event.removeprefix("data: "))
    if chunk.get("choices") or not chunk.get("usage"):
        return event
    usage = chunk["usage"]
    usage["completion_tokens_details"] = (usage.get("completion_tokens_details") or {}) | count.details()
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


def in_usage(count: PredictionCount, response: Any) -> Any:
    """The response, whose usage has the numbers; an error as it is."""
    from vllm.entrypoints.serve.engine.protocol import CompletionTokenUsageInfo

    usage = getattr(response, "usage", None)
    if usage is not None:
        details = usage.completion_tokens_details or CompletionTokenUsageInfo()
        usage.completion_tokens_details = details.model_copy(update=count.details())
    return response
