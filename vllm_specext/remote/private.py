"""An answer to a prompt whose end never leaves the machine (MoA, appendix A.6).

The server reads the part that may be sent, and its rows come back. Then the session ends, and the connection with it.
All tokens of the answer are the drafter's own: it sees the rows, the private part and what it has said.
What this does not hide: that a part is missing, when it was asked, and the part that is sent.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import NoReturn

from vllm_specext.remote.answer import Event
from vllm_specext.remote.client import Client
from vllm_specext.remote.events import Done, Said, Traffic
from vllm_specext.remote.exchange import RefusedError
from vllm_specext.remote.protocol import Sampling


class PrivateText:
    """Token ids that no message can be made of: they have no place in one, and are not shown, copied or pickled."""

    __slots__ = ("_ids",)

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = tuple(ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        return f"<{len(self)} private tokens>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("private text is not pickled")

    def after(self, text: list[int]) -> list[int]:
        """``text`` and this after it, for a drafter on this machine."""
        return [*text, *self._ids]


def parted(whole: list[int], known: list[int]) -> tuple[list[int], PrivateText]:
    """The part of ``whole`` that may be sent, and the rest: what ``known``, the tokens of the text without its private
    end, begins with too."""
    same = 0
    while same < min(len(whole), len(known)) and whole[same] == known[same]:
        same += 1
    return whole[:same], PrivateText(whole[same:])


async def answer_privately(
    client: Client, safe: list[int], private: PrivateText, sampling: Sampling, max_tokens: int
) -> AsyncGenerator[Event, None]:
    """The tokens of an answer to ``safe`` and ``private``, none of which the target has said.

    Raises ``RefusedError``, also where the server cannot be reached in time or nothing may be sent.
    """
    if not safe:
        raise RefusedError("nothing of the prompt may be sent, but the drafter has to know something of it.")
    traffic = await _read(client, safe)
    text = private.after(safe)
    finish = "length"
    for _ in range(max_tokens):
        token = await client.drafter.say(text, sampling)
        text.append(token)
        traffic.offline += 1
        yield Said([token], verified=False)
        if token in client.settings.ends:
            finish = "stop"
            break
    yield Done(finish, False, traffic)


async def _read(client: Client, safe: list[int]) -> Traffic:
    """Have the server read the part that may be sent, so that the drafter has its rows."""
    reading = client.with_settings(replace(client.settings, offline_limit=0))
    async for event in reading.answer(safe, Sampling(0), 1):
        if isinstance(event, Done):
            if event.finish == "offline":
                raise RefusedError("the server cannot be reached, and the drafter has to know the prompt from it.")
            event.traffic.verified = 0  # the one token that came is nobody's
            return event.traffic
    raise AssertionError("an answer ends")
