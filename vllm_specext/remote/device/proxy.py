"""OpenAI's interface on the client's machine: chat and completions, streamed or whole, each with ``specext`` beside
its usage."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from vllm_specext.errors import ConfigurationError
from vllm_specext.remote.answer import Event
from vllm_specext.remote.device.asking import Asking
from vllm_specext.remote.device.wording import Growing
from vllm_specext.remote.events import Done, Retracted
from vllm_specext.remote.protocol import Sampling

SAMPLING = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "n"}
SIZES = {"max_tokens", "max_completion_tokens", "stream", "stream_options"}
KNOWN = {"model", "messages", "prompt", "user"} | SAMPLING | SIZES
MAX_BODY = 4 << 20
DEFAULT_TOKENS = 256


def proxy(asking: Asking) -> Starlette:
    """The application; answers come from ``asking``."""

    async def chat(request: Request) -> Response:
        return await _answered(asking, request, is_chat=True)

    async def completions(request: Request) -> Response:
        return await _answered(asking, request, is_chat=False)

    async def models(request: Request) -> Response:
        one = {"id": asking.bundle.target, "object": "model", "owned_by": "vllm-specext"}
        return JSONResponse({"object": "list", "data": [one]})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", lambda request: Response()),
        ]
    )


class Asked:
    """A request's body. Raises ``ConfigurationError`` for what cannot be kept."""

    def __init__(self, body: Any, asking: Asking, is_chat: bool) -> None:
        if not isinstance(body, dict):
            raise ConfigurationError("the body must be a JSON object.")
        if unknown := sorted(key for key in body.keys() - KNOWN if body[key] is not None):
            raise ConfigurationError(f"{unknown[0]!r} is not supported by a client that drafts.")
        if body.get("n") not in (None, 1):
            raise ConfigurationError(f"'n' is {body['n']!r}; only 1 is supported.")
        self.is_chat, self.streams = is_chat, bool(body.get("stream"))
        options = body.get("stream_options") or {}
        self.wants_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        self.max_tokens = _number(body, "max_completion_tokens", "max_tokens", DEFAULT_TOKENS, int, 1, 1 << 24)
        self.sampling = Sampling(
            seed=_number(body, "seed", "seed", secrets.randbits(32), int, 0, (1 << 63) - 1),
            temperature=_number(body, "temperature", "temperature", 1.0, float, 0, 2),
            top_p=_number(body, "top_p", "top_p", 1.0, float, 1e-9, 1),
            top_k=max(0, _number(body, "top_k", "top_k", 0, int, -1, (1 << 31) - 1)),
            min_p=_number(body, "min_p", "min_p", 0.0, float, 0, 1),
            repetition_penalty=_number(body, "repetition_penalty", "repetition_penalty", 1.0, float, 1e-9, 2),
        )
        self.ids, self.known = _chat(body, asking) if is_chat else (_prompt(body, asking), None)
        if not self.ids:
            raise ConfigurationError("the prompt is empty.")


def _number(body: dict[str, Any], name: str, other: str, default: Any, kind: type, least: float, most: float) -> Any:
    value = body.get(name) if body.get(name) is not None else body.get(other)
    if value is None:
        return default
    fine = isinstance(value, int | float) and not isinstance(value, bool) and value == kind(value)
    if not fine or not least <= value <= most:
        raise ConfigurationError(f"{name!r} is {value!r}; expected a number from {least:g} to {most:g}.")
    return kind(value)


def _chat(body: dict[str, Any], asking: Asking) -> tuple[list[int], list[int] | None]:
    """The chat's tokens; with a last message that is private, also those of the chat without it."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages) or not messages:
        raise ConfigurationError("'messages' must be a list of {'role': ..., 'content': a string}.")
    private = [message.pop("private", False) for message in messages]
    if any(private[:-1]) or not isinstance(private[-1], bool):
        raise ConfigurationError("'private' must be true or false, and only the last message may have it.")
    known = asking.wording.of_chat(messages[:-1]) if private[-1] and len(messages) > 1 else []
    return asking.wording.of_chat(messages), known if private[-1] else None


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _prompt(body: dict[str, Any], asking: Asking) -> list[int]:
    if not isinstance(body.get("prompt"), str):
        raise ConfigurationError("'prompt' must be a string.")
    return asking.wording.of_text(body["prompt"])


async def _answered(asking: Asking, request: Request, is_chat: bool) -> Response:
    content = b""
    async for piece in request.stream():
        content += piece
        if len(content) > MAX_BODY:
            return _refused(f"the body has more than {MAX_BODY} bytes.", 413)
    try:
        asked = Asked(json.loads(content), asking, is_chat)
        events = _events(asked, asking)
        if asked.streams:
            return StreamingResponse(_streamed(asked, events, asking), media_type="text/event-stream")
        text, done = Growing(asking.wording), None
        said = ""
        async for event in events:
            if isinstance(event, Done):
                said, done = said + text.end(), event
            elif isinstance(event, Retracted):
                lost = text.retract(event.count)
                said = said[: len(said) - lost]
            else:
                said += text.more(event.ids)
        assert done is not None
        return JSONResponse(_object(asked, asking, said, done, whole=True))
    except (ConfigurationError, ValueError, RecursionError) as error:
        return _refused(str(error), 400)


def _events(asked: Asked, asking: Asking) -> AsyncGenerator[Event, None]:
    if asked.known is None:
        return asking.answer(asked.ids, asked.sampling, asked.max_tokens)
    return asking.answer_privately(asked.ids, asked.known, asked.sampling, asked.max_tokens)


async def _streamed(asked: Asked, told: AsyncGenerator[Event, None], asking: Asking) -> AsyncIterator[str]:
    """Server-sent events. They cannot take anything back, so that ``rewrite`` waits: what may be retracted is held."""
    text, name = Growing(asking.wording), _name(asked)
    held: list[int] = []
    rewrites = asking.rewrites
    try:
        async with aclosing(told) as events:  # also where the program that asked goes away
            async for event in events:
                if isinstance(event, Retracted):
                    del held[-event.count :]
                elif isinstance(event, Done):
                    rest = text.more(held) + text.end()
                    yield _event(_object(asked, asking, rest, event, whole=False, name=name))
                elif rewrites and not event.verified:
                    held += event.ids
                else:
                    ids, held = held + event.ids, []
                    if new := text.more(ids):
                        yield _event(_object(asked, asking, new, None, whole=False, name=name))
    except ConfigurationError as error:
        yield _event({"error": {"message": str(error), "type": "server_error"}})
    yield "data: [DONE]\n\n"


def _object(
    asked: Asked, asking: Asking, text: str, done: Done | None, whole: bool, name: str | None = None
) -> dict[str, Any]:
    kind = "chat.completion" if asked.is_chat else "text_completion"
    finish = None if done is None else {"offline": "length"}.get(done.finish, done.finish)
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if not asked.is_chat:
        choice["text"] = text
    else:
        choice["message" if whole else "delta"] = {"role": "assistant", "content": text}
    made: dict[str, Any] = {
        "id": name or _name(asked),
        "object": kind if whole or not asked.is_chat else f"{kind}.chunk",
        "created": int(time.time()),
        "model": asking.bundle.target,
        "choices": [choice],
    }
    if done is not None:
        traffic = done.traffic
        tokens = traffic.verified + traffic.offline
        if whole or asked.wants_usage:
            prompt = len(asked.ids)
            made["usage"] = {
                "prompt_tokens": prompt,
                "completion_tokens": tokens,
                "total_tokens": prompt + tokens,
            }
        made["specext"] = {
            "verified": traffic.verified,
            "offline": traffic.offline,
            "calls": traffic.calls,
            "bytes_up": traffic.bytes_up,
            "bytes_down": traffic.bytes_down,
            "exact": done.exact,
        }
    return made


def _name(asked: Asked) -> str:
    return f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{secrets.token_hex(12)}"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _refused(sentence: str, status: int) -> JSONResponse:
    return JSONResponse({"error": {"message": sentence, "type": "invalid_request_error", "code": status}}, status)
