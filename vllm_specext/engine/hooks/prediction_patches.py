"""OpenAI's ``prediction`` in requests to the server, and how much of it the answer has, in its usage."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import when_loaded, wrap

CHAT = "vllm.entrypoints.openai.chat_completion.serving"
COMPLETION = "vllm.entrypoints.openai.completion.serving"


def wrap_predictions() -> None:
    # Only servers load these modules.
    when_loaded(CHAT, _wrap_chat)
    when_loaded(COMPLETION, _wrap_completion)


def _wrap_chat(module: Any) -> None:
    wrap(module.OpenAIServingChat, "create_chat_completion", _create)
    wrap(module.OpenAIServingChat, "chat_completion_stream_generator", _stream_chat)
    wrap(module.OpenAIServingChat, "chat_completion_full_generator", _answer_chat)


def _wrap_completion(module: Any) -> None:
    wrap(module.OpenAIServingCompletion, "create_completion", _create)
    wrap(module.OpenAIServingCompletion, "completion_stream_generator", _stream_completion)
    wrap(module.OpenAIServingCompletion, "request_output_to_completion_response", _answer_completion)


@replaces(
    "vllm.entrypoints.openai.chat_completion.serving.OpenAIServingChat.create_chat_completion",
    name="predictions of chats",
    why="vLLM takes OpenAI's prediction for an unknown field, and ignores it",
    how="wrapped: checked, and made token ids in vllm_xargs, where the method takes predictions; then vLLM's own",
    upstream="vllm#10137 (closed as stale), vllm#23450 and vllm#24568 (closed unmerged)",
    until="vLLM's protocol has the field",
    signature="self request raw_request",
)
@replaces(
    "vllm.entrypoints.openai.completion.serving.OpenAIServingCompletion.create_completion",
    name="predictions of completions",
    why="vLLM takes OpenAI's prediction for an unknown field, and ignores it",
    how="wrapped: checked, and made token ids in vllm_xargs, where the method takes predictions; then vLLM's own",
    upstream="vllm#10137 (closed as stale), vllm#23450 and vllm#24568 (closed unmerged)",
    until="vLLM's protocol has the field",
    signature="self request raw_request",
)
def _create(original: Callable) -> Callable:
    async def create(self: Any, request: Any, raw_request: Any = None) -> Any:
        from vllm_specext.engine.served_predictions import take_prediction

        await take_prediction(self, request)
        return await original(self, request, raw_request)

    return create


@replaces(
    "vllm.entrypoints.openai.chat_completion.serving.OpenAIServingChat.chat_completion_stream_generator",
    name="usage of predictions in streamed chats",
    why="OpenAI's usage says how much of a prediction was accepted, and vLLM's has no such numbers",
    how="wrapped for requests with a prediction: tokens are counted as they come, and the last usage gets the numbers",
    upstream="none known",
    until="vLLM counts them",
    signature=(
        "self request result_generator request_id model_name conversation tokenizer request_metadata "
        "chat_template_kwargs mm_token_counts"
    ),
)
def _stream_chat(original: Callable) -> Callable:
    def stream(self: Any, request: Any, results: Any, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
        from vllm_specext.engine.served_predictions import count_for, in_last_usage, observed

        count = count_for(self, request)
        if count is None:
            unchanged: AsyncIterator[str] = original(self, request, results, *args, **kwargs)
            return unchanged
        return in_last_usage(count, original(self, request, observed(results, count), *args, **kwargs))

    return stream


@replaces(
    "vllm.entrypoints.openai.chat_completion.serving.OpenAIServingChat.chat_completion_full_generator",
    name="usage of predictions in chats",
    why="OpenAI's usage says how much of a prediction was accepted, and vLLM's has no such numbers",
    how="wrapped for requests with a prediction: the answer's tokens are counted, and its usage gets the numbers",
    upstream="none known",
    until="vLLM counts them",
    signature=(
        "self request result_generator request_id model_name conversation tokenizer request_metadata parser "
        "mm_token_counts"
    ),
)
def _answer_chat(original: Callable) -> Callable:
    async def answer(self: Any, request: Any, results: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_specext.engine.served_predictions import count_for, in_usage, observed

        count = count_for(self, request)
        if count is None:
            return await original(self, request, results, *args, **kwargs)
        return in_usage(count, await original(self, request, observed(results, count), *args, **kwargs))

    return answer


@replaces(
    "vllm.entrypoints.openai.completion.serving.OpenAIServingCompletion.completion_stream_generator",
    name="usage of predictions in streamed completions",
    why="OpenAI's usage says how much of a prediction was accepted, and vLLM's has no such numbers",
    how="wrapped for requests with a prediction: tokens are counted as they come, and the last usage gets the numbers",
    upstream="none known",
    until="vLLM counts them",
    signature=(
        "self request engine_inputs result_generator request_id created_time model_name num_prompts tokenizer "
        "request_metadata"
    ),
)
def _stream_completion(original: Callable) -> Callable:
    def stream(self: Any, request: Any, inputs: Any, results: Any, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
        from vllm_specext.engine.served_predictions import count_for, in_last_usage, observed

        count = count_for(self, request)
        if count is None:
            unchanged: AsyncIterator[str] = original(self, request, inputs, results, *args, **kwargs)
            return unchanged
        return in_last_usage(count, original(self, request, inputs, observed(results, count), *args, **kwargs))

    return stream


@replaces(
    "vllm.entrypoints.openai.completion.serving.OpenAIServingCompletion.request_output_to_completion_response",
    name="usage of predictions in completions",
    why="OpenAI's usage says how much of a prediction was accepted, and vLLM's has no such numbers",
    how="wrapped for requests with a prediction: the answer's tokens are counted, and its usage gets the numbers",
    upstream="none known",
    until="vLLM counts them",
    signature="self final_res_batch request request_id created_time model_name tokenizer request_metadata",
)
def _answer_completion(original: Callable) -> Callable:
    def answer(self: Any, results: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_specext.engine.served_predictions import count_for, in_usage, take

        response = original(self, results, request, *args, **kwargs)
        count = count_for(self, request)
        if count is None:
            return response
        for prompt, result in enumerate(results):
            take(count, prompt, result)
        return in_usage(count, response)

    return answer
