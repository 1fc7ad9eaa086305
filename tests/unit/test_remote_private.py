"""The end of a prompt that never leaves the machine."""

import asyncio
import copy
import pickle
import random
from typing import Any

import msgspec
import pytest

from tests.unit.remote_link import GREEDY, PRESETS, Link, ToyDrafter, ToyTarget, answer, run, serve, settings
from vllm_specext.remote.client import Client
from vllm_specext.remote.events import Done, Said
from vllm_specext.remote.exchange import RefusedError
from vllm_specext.remote.private import PrivateText, answer_privately, parted
from vllm_specext.remote.protocol import Sampling, ids_to_bytes

LAN = PRESETS["lan"]


def grams(ids: list[int]) -> list[bytes]:
    """Three tokens each, as they would stand in a frame."""
    return [ids_to_bytes(ids[first : first + 3]) for first in range(len(ids) - 2)]


def met(frames: list[bytes], ids: list[int]) -> int:
    return sum(gram in frame for frame in frames for gram in grams(ids))


async def asked_privately(link: Link, safe: list[int], private: list[int], number: int) -> list[int]:
    drafter = ToyDrafter(Sampling(number, float(number % 2)), 0.7, random.Random(number))
    client = Client(link.connect, drafter, settings(), random.Random(number))
    ids: list[int] = []
    async for event in answer_privately(client, safe, PrivateText(private), drafter.sampling, 12):
        if isinstance(event, Said):
            assert not event.verified
            ids += event.ids
        else:
            assert isinstance(event, Done)
            assert not event.exact
            assert event.traffic.verified == 0
            assert event.traffic.offline == len(ids)
            assert len(drafter.rows) == len(safe)
    return ids


def test_no_frame_has_three_tokens_of_the_private_part_or_of_the_answer() -> None:
    async def main() -> None:
        chooser = random.Random(3)
        for number in range(100):
            link = Link(PRESETS[chooser.choice(list(PRESETS))], lambda: serve(ToyTarget()), seed=number)
            safe, private = ([chooser.randrange(8, 2000) for _ in range(count)] for count in (20, 9))
            ids = await asked_privately(link, safe, private, number)
            link.end()
            assert met(link.seen, safe) > 0
            assert met(link.seen, private + ids) == 0

    run(main())


def test_a_prompt_that_is_sent_is_found_in_frames() -> None:
    async def main() -> None:
        link = Link(LAN, lambda: serve(ToyTarget()))
        prompt = list(range(100, 130))
        await answer(link, ToyDrafter(GREEDY, 0.7, random.Random(0)), prompt)
        link.end()
        assert met(link.seen, prompt) >= len(prompt) - 2

    run(main())


@pytest.mark.parametrize("spoil", [pickle.dumps, copy.deepcopy, msgspec.msgpack.encode, msgspec.json.encode])
def test_private_text_is_not_made_into_bytes(spoil: Any) -> None:
    with pytest.raises(TypeError):
        spoil(PrivateText([71, 72]))


def test_private_text_is_not_shown() -> None:
    assert repr(PrivateText([71, 72])) == str(PrivateText([71, 72])) == "<2 private tokens>"
    assert not hasattr(PrivateText([71]), "__dict__")


def test_what_may_be_sent_is_what_both_texts_begin_with() -> None:
    safe, private = parted([1, 2, 3, 9, 9, 5], [1, 2, 3, 4, 5])
    assert safe == [1, 2, 3]
    assert private.after(safe) == [1, 2, 3, 9, 9, 5]


def test_without_a_server_or_a_part_to_send_there_is_no_answer() -> None:
    async def main() -> None:
        link = Link(LAN, lambda: serve(ToyTarget()))
        link.cut()
        client = Client(link.connect, ToyDrafter(GREEDY, 1, random.Random(0)), settings(patience=2.0))
        for safe, sentence in (([1, 2], "the server cannot be reached"), ([], "nothing of the prompt may be sent")):
            with pytest.raises(RefusedError, match=sentence):
                async for _ in answer_privately(client, safe, PrivateText([3]), GREEDY, 4):
                    pass
        assert asyncio.get_running_loop().time() < 10

    run(main())
