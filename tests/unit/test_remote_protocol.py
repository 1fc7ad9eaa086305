"""Frames between a client that drafts and a server that verifies: their sizes, and what is refused of those that are
none."""

import random
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from vllm_specext.remote import protocol
from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.protocol import (
    MAX_FRAME,
    PROTOCOL,
    Close,
    Error,
    Hello,
    MalformedError,
    Need,
    Open,
    Rows,
    Sampling,
    Tokens,
    Verified,
    Verify,
    Welcome,
    encode,
    from_client,
    from_server,
    ids_to_bytes,
)
from vllm_specext.remote.rows import FLOAT16, INT8, RowFormat

SESSION, DIGEST = bytes(range(16)), b"\xff" * 8
LIMITS = Welcome(0, "target", 2048, 1024, 62, 6)


def verify(ids: list[int], parents: list[int]) -> Verify:
    return Verify(300, SESSION, 200, DIGEST, ids_to_bytes(ids), bytes(parents), 198)


TREE = verify([5, 9, 5, 7, 8], [0, 0, 1, 1, 3])
CLIENTS: list[Any] = [
    Hello(0, PROTOCOL, "ab" * 32, "int8"),
    Open(1, SESSION, 200, DIGEST, 64, Sampling(7, temperature=0.7, top_p=0.9), 180),
    Tokens(2, SESSION, 0, ids_to_bytes(range(200))),
    TREE,
    Close(4, SESSION),
]
SERVERS: list[Any] = [
    LIMITS,
    Need(1, 40),
    Rows(2, 0, bytes(264)),
    Verified(300, 200, ids_to_bytes([5, 7, 100]), 198, bytes(3 * 264), "", 12.5),
    Error(9, "busy", "the queue is full.", 500.0),
]


def test_messages_survive_a_frame() -> None:
    assert [from_client(encode(message)) for message in CLIENTS] == CLIENTS
    assert [from_server(encode(message)) for message in SERVERS] == SERVERS


@pytest.mark.parametrize("nodes", [0, 1, 24, 62, 128])
def test_a_tree_takes_five_bytes_for_a_node(nodes: int) -> None:
    around = 1 + len(b"_verify") + (1 + 2) + (2 + 16) + 2 + (2 + 8)  # up to the ids: number 300, length 200
    headers = (2 if 4 * nodes < 256 else 3) + 2 + 2 + 1  # and the number of rows, and none of plain tokens
    assert len(encode(verify([9] * nodes, [0] * nodes))) == around + headers + 5 * nodes


@pytest.mark.parametrize("accepted", [0, 4, 20])
def test_an_answer_takes_four_bytes_for_a_token_and_its_rows(accepted: int) -> None:
    form = RowFormat(2, 64, INT8)
    assert form.size == 2 * 2 * 64 + 2 * 2 * 2
    rows = bytes((accepted + 1) * form.size)
    message = Verified(300, 200, ids_to_bytes([1] * (accepted + 1)), 199, rows, "", 12.5)
    around = 1 + len(b"_verified") + (1 + 2) + 2 + 2 + 2 + 1 + 9
    assert len(encode(message)) == around + (3 if len(rows) > 255 else 2) + 1 + 4 * (accepted + 1) - 1 + len(rows)


REFUSED: dict[str, tuple[Verify, str]] = {
    "no tree": (verify([1, 2], [0, 2]), "node 2 of a tree has parent 2"),
    "twins": (verify([4, 4], [0, 0]), "the same token"),
    "a token too large": (verify([2048], [0]), "token id 2048 is not one of the target's 2048"),
    "too many levels": (verify(list(range(8)), [*range(7), 0]), "7 levels, but at most 6"),
    "too many nodes": (verify(list(range(63)), [0] * 63), "63 nodes, but at most 62"),
    "parents missing": (verify([1, 2], [0]), "2 token ids and 1 parents"),
    "half a token": (
        Verify(0, SESSION, 9, DIGEST, b"\x01\x00\x00\x00\x02", b"\x00", 0),
        "5 bytes; each has 4",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_tree_is_refused_in_a_sentence(name: str) -> None:
    message, sentence = REFUSED[name]
    with pytest.raises(MalformedError, match=sentence) as raised:
        Drafted.of(message, LIMITS)
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (b"", f"no message of protocol {PROTOCOL}"),
        (b"\xc1", f"no message of protocol {PROTOCOL}"),
        (msgspec.msgpack.encode(["verify", 1]), "no message"),
        (msgspec.msgpack.encode(["nothing", 1]), "no message"),
        (msgspec.msgpack.encode(["close", 1, b"short"]), "no message"),
        (msgspec.msgpack.encode(["close", -1, SESSION]), "no message"),
        (msgspec.msgpack.encode(["close", 1, SESSION, 2]), "no message"),
        (msgspec.msgpack.encode(["open", 1, SESSION, 9, DIGEST, 1 << 40, [0], 9]), "no message"),
        (b"\x91" * 5000, "no message"),
        (bytes(MAX_FRAME + 1), "at most 65536"),
    ],
)
def test_what_is_no_message_is_refused_in_a_sentence(frame: bytes, sentence: str) -> None:
    with pytest.raises(MalformedError, match=sentence):
        from_client(frame)


def test_a_hundred_thousand_damaged_frames_are_a_message_or_refused() -> None:
    """Bits flipped, bytes cut out, frames joined and cut off: nothing else is raised, nor is a tree made of it that is
    none."""
    chooser = random.Random(0)
    frames = [encode(message) for message in CLIENTS]
    messages = trees = 0
    for _ in range(100_000):
        damaged = bytearray(chooser.choice(frames))
        for _ in range(chooser.randint(1, 3)):
            damage, place = chooser.randrange(4), chooser.randrange(len(damaged) or 1)
            if damage == 0 and damaged:
                damaged[place] ^= 1 << chooser.randrange(8)
            elif damage == 1:
                del damaged[place : place + chooser.randint(1, 8)]
            elif damage == 2:
                damaged[place:place] = chooser.choice(frames)[: chooser.randint(1, 40)]
            else:
                del damaged[place:]
        try:
            message = from_client(bytes(damaged))
            messages += 1
            if isinstance(message, Verify):
                tree = Drafted.of(message, LIMITS)
                trees += 1
                assert (tree.parents <= np.arange(len(tree.ids))).all()
                assert (tree.ids < LIMITS.vocabulary).all()
                assert tree.levels <= LIMITS.max_levels or tree.levels == len(tree.ids)
        except MalformedError:
            continue
    assert messages > 1000
    assert trees > 100


def test_a_chain_may_be_as_long_as_trees_are_large() -> None:
    chain = verify(list(range(62)), list(range(62)))
    assert Drafted.of(chain, LIMITS).levels == 62
    assert Drafted.chain(list(range(62))).parents.tolist() == list(chain.parents)


def test_the_branch_under_a_token_is_a_tree_of_its_own() -> None:
    whole = Drafted.of(TREE, LIMITS)
    assert whole.levels == 3
    branch = whole.under(5)
    assert branch.ids.tolist() == [5, 7, 8]
    assert branch.parents.tolist() == [0, 0, 1]
    assert branch.levels == 2
    assert whole.under(9).ids.tolist() == whole.under(6).ids.tolist() == []
    assert whole.under(9).levels == 0


@pytest.mark.parametrize("kind", [INT8, FLOAT16])
def test_rows_come_back_to_rounding(kind: str) -> None:
    form, random_ = RowFormat(2, 64, kind), torch.Generator().manual_seed(0)
    keys, values = (
        torch.randn(2, 9, 2, 64, generator=random_) * torch.tensor([1e-3, 1.0, 40.0]).repeat(3)[:, None, None]
    )
    keys[4] = 0
    packed = form.pack(keys, values)
    assert packed.shape == (9, form.size)
    for sent, found in zip((keys, values), form.unpack(packed.numpy().tobytes()), strict=True):
        largest = sent.abs().amax(dim=-1, keepdim=True)
        # Half a step of the 127, and what float16 rounds the step by.
        assert ((sent - found).abs() <= largest * (0.5 / 127 + 2e-3 if kind == INT8 else 5e-4) + 1e-7).all()


def test_rows_that_are_none_are_refused() -> None:
    form = RowFormat(2, 64, INT8)
    with pytest.raises(MalformedError, match="rows have 263 bytes; each has 264"):
        form.unpack(bytes(263))
    assert form.unpack(b"")[0].shape == (0, 2, 64)
    with pytest.raises(MalformedError, match="NaN or an infinity"):
        form.unpack(bytes(256) + b"\x00\x7c" * 4)


def test_a_frame_of_tokens_has_room_for_its_longest_piece() -> None:
    longest = Tokens(0xFFFFFFFF, SESSION, protocol.MAX_TOKENS, bytes(protocol.PIECE * 4))
    assert len(encode(longest)) <= MAX_FRAME
    assert from_client(encode(longest)) == longest


def test_a_tree_accepts_of_a_text_what_it_has_from_the_root_on() -> None:
    tree = Drafted.made(np.array([5, 6, 5, 7]), np.array([0, 0, 1, 3]))  # 5, 6, 5 5, 5 5 7
    assert tree.accepted([8]) == 0
    assert tree.accepted([6, 5]) == 1
    assert tree.accepted([5, 5, 7, 1, 2]) == 3
    assert tree.accepted([5, 7]) == 1
    assert tree.accepted([5, 5]) is None  # as far as the text goes
    assert tree.accepted([]) is None
