"""Penalties, bad words and budgets for thinking at the nodes of draft trees against plain loops, on the drafts of every
builder of trees.

Every test here runs in numpy, with the Triton kernels on a GPU, and with these under Triton's interpreter
(``cases/case_path_text.py``).
"""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from bodies import GPU
from path_steps import ALPHABET, REQUESTS, SLOTS, VOCABULARY, Step, step
from torch import Tensor
from tree_builders import BUILDERS, states

from vllm_specext.kernels import path_text
from vllm_specext.kernels.path_text.rows import BadWords, Paths, Penalties, Thinking

WORDS = 8
"""Most bad words of a request."""

Body = tuple[Callable[..., None], Callable[..., None], Callable[..., None]]


@pytest.fixture(params=["numpy", GPU])
def bodies(request: pytest.FixtureRequest) -> Body:
    """``penalise``, ``ban`` and ``end_thinking`` of tensors on the CPU, wherever they are computed."""
    if request.param == "numpy":
        return path_text.penalise, path_text.ban, path_text.end_thinking
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return on_gpu(path_text.penalise), on_gpu(path_text.ban), on_gpu(path_text.end_thinking)


def on_gpu(change: Callable[..., None]) -> Callable[..., None]:
    def run(logits: Tensor, *arguments: Any) -> None:
        there = logits.cuda()
        change(there, *map(moved, arguments))
        logits.copy_(there)

    return run


def moved(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.cuda()
    return type(argument)(*map(moved, argument)) if isinstance(argument, tuple) else argument


def penalties(asked: Step, seed: int) -> Penalties:
    generator = torch.Generator().manual_seed(seed)
    strengths = torch.rand(3, SLOTS, generator=generator)
    strengths[:, 1] = 0  # a request without
    bits = np.zeros((SLOTS, 32 * math.ceil(VOCABULARY / 32)), dtype=bool)
    counts = torch.zeros(SLOTS, VOCABULARY, dtype=torch.int32)
    for slot in range(SLOTS):
        bits[slot, asked.said.tokens[slot, : asked.said.prompt_lens[slot]]] = True
        bits[slot, VOCABULARY - 1] = True
        for token in asked.answer(slot):
            counts[slot, token] += 1
    packed = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
    return Penalties(1 + strengths[0], strengths[1] - strengths[0] / 2, strengths[2], packed, counts)


def check_penalties(body: Body, asked: Step, seed: int) -> None:
    of = penalties(asked, seed)
    changed = asked.logits.clone()
    body[0](changed, asked.paths, of)
    for row in asked.counted:
        slot = asked.rows[row][0]
        text, expected = [*asked.answer(slot), *asked.drafted(row)], asked.logits[row].clone()
        for token in {*asked.said.tokens[slot, : asked.said.prompt_lens[slot]].tolist(), VOCABULARY - 1, *text}:
            expected[token] *= 1 / of.repetition[slot] if expected[token] > 0 else of.repetition[slot]
        for token in set(text):
            expected[token] -= of.frequency[slot] * text.count(token)
            expected[token] -= of.presence[slot]
        torch.testing.assert_close(changed[row], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", BUILDERS)
def test_penalties_count_the_tokens_of_the_path_to_each_node(bodies: Body, name: str) -> None:
    trees = states(REQUESTS)  # slots hold what was drafted before as well
    for seed in range(4):
        check_penalties(bodies, step(name, seed, trees), seed)


def test_counting_all_earlier_rows_would_show(bodies: Body) -> None:
    asked = step("grown", 1)
    chains = states(REQUESTS).topology.parents
    with pytest.raises(AssertionError):
        check_penalties(
            (lambda logits, paths, of: bodies[0](logits, paths._replace(parents=chains), of), *bodies[1:]), asked, 1
        )


def words(seed: int, most: int = WORDS) -> tuple[BadWords, list[list[list[int]]]]:
    rng = random.Random(seed)
    lists = [
        [[rng.randrange(ALPHABET) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(0, most))]
        for _ in range(SLOTS)
    ]
    lists[1] = []
    for own in lists:
        for number, word in enumerate(own):
            word[-1] = 100 + number  # so that each is seen
    tokens, offsets = torch.zeros(SLOTS, 4 * most, dtype=torch.int32), torch.zeros(SLOTS, most + 1, dtype=torch.int32)
    for slot, own in enumerate(lists):
        flat = [token for word in own for token in word]
        tokens[slot, : len(flat)] = torch.tensor(flat)
        offsets[slot, 1 : len(own) + 1] = torch.tensor([len(word) for word in own]).cumsum(0)
    return BadWords(tokens, offsets, torch.tensor([len(own) for own in lists], dtype=torch.int32)), lists


def check_words(body: Body, asked: Step, seed: int) -> int:
    """How many were found that reach over the answer's end into a path."""
    of, lists = words(seed)
    changed, over = asked.logits.clone(), 0
    body[1](changed, asked.paths, of, asked.said, int(of.counts.max()))
    for row in asked.counted:
        slot = asked.rows[row][0]
        drafted, expected = asked.drafted(row), asked.logits[row].clone()
        text = [*asked.answer(slot), *drafted]
        for word in lists[slot]:
            if len(word) - 1 <= len(text) and word[:-1] == text[len(text) - len(word) + 1 :]:
                expected[word[-1]] = -torch.inf
                over += 0 < len(drafted) < len(word) - 1
        assert torch.equal(changed[row], expected)
    return over


@pytest.mark.parametrize("name", BUILDERS)
def test_bad_words_end_the_answer_and_the_path_to_each_node(bodies: Body, name: str) -> None:
    trees = states(REQUESTS)
    assert sum(check_words(bodies, step(name, seed, trees), seed) for seed in range(6)) >= 5


def test_comparing_with_all_earlier_rows_would_show(bodies: Body) -> None:
    chains = states(REQUESTS).topology.parents
    with pytest.raises(AssertionError):
        check_words(
            (bodies[0], lambda logits, paths, *of: bodies[1](logits, paths._replace(parents=chains), *of), bodies[2]),
            step("grown", 1),
            1,
        )


MARKERS = [([0], [1], [1, 0]), ([0, 0], [1, 1], [1, 1, 0, 1]), ([0, 1, 0], [1], [0]), ([1], [0, 1, 1], [0, 1, 1])]
"""Of a beginning, of an end, and what is forced; of two tokens, so that they are there again and again."""


def last_place(text: list[int], marker: list[int]) -> int:
    return max((at for at in range(len(text)) if text[at : at + len(marker)] == marker), default=-1)


def thinking(asked: Step, seed: int) -> tuple[Thinking, tuple[list[int], list[int], list[int]]]:
    generator = torch.Generator().manual_seed(seed)
    markers = MARKERS[seed % len(MARKERS)]
    budgets = torch.randint(0, 12, (SLOTS,), generator=generator, dtype=torch.int32)
    budgets[1] = -1
    said = [asked.said.tokens[slot, : asked.said.total_lens[slot]].tolist() for slot in range(SLOTS)]
    places = ([last_place(text, marker) for text in said] for marker in markers[:2])
    of_text = (torch.tensor(found, dtype=torch.int32) for found in places)
    return Thinking(budgets, *of_text, *(torch.tensor(marker, dtype=torch.int32) for marker in markers)), markers


def check_thinking(body: Body, asked: Step, seed: int) -> int:
    """How many rows were forced."""
    of, (start, natural_end, forced_end) = thinking(asked, seed)
    changed, forced = asked.logits.clone(), 0
    body[2](changed, asked.paths, of, asked.said)
    for row in asked.counted:
        slot = asked.rows[row][0]
        text = asked.said.tokens[slot, : asked.said.total_lens[slot]].tolist() + asked.drafted(row)
        begun, expected = last_place(text, start), asked.logits[row].clone()
        thought = len(text) - begun - len(start)
        if begun > last_place(text, natural_end) and 0 <= of.budgets[slot] <= thought:
            written = [n for n in range(1, len(forced_end)) if text[-n:] == forced_end[:n]]
            expected[forced_end[max(written, default=0)]] = 1.0e9
            forced += 1
        assert torch.equal(changed[row], expected)
    return forced


@pytest.mark.parametrize("name", BUILDERS)
def test_budgets_end_what_is_thought_on_the_path_to_each_node(bodies: Body, name: str) -> None:
    trees = states(REQUESTS)
    assert sum(check_thinking(bodies, step(name, seed, trees), seed) for seed in range(8)) >= 5


def test_looking_into_all_earlier_rows_would_show(bodies: Body) -> None:
    chains = states(REQUESTS).topology.parents

    def in_rows(logits: Tensor, paths: Paths, *of: Any) -> None:
        bodies[2](logits, paths._replace(parents=chains), *of)

    with pytest.raises(AssertionError):
        check_thinking((*bodies[:2], in_rows), step("grown", 1), 1)


def check_beside_vllm(device: str) -> None:
    """On chains the kernels change what vLLM's change, to the last bit: tokens of a plain step must not differ."""
    from vllm.v1.worker.gpu.sample.bad_words import apply_bad_words
    from vllm.v1.worker.gpu.sample.penalties import apply_penalties
    from vllm.v1.worker.gpu.sample.thinking_budget import apply_thinking_budget

    from vllm_specext.kernels.path_text import kernel

    def there(argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return argument.clone().to(device)
        return type(argument)(*map(there, argument)) if isinstance(argument, tuple) else argument

    asked = step("chains", 0)
    parents = states(REQUESTS).topology.parents
    chains = there(asked.paths._replace(parents=parents, levels=parents.shape[1] - 1))
    slots, places, tokens, *_ = chains
    punished, (listed, _), said = there(penalties(asked, 0)), words(0), there(asked.said)
    listed, before = there(listed), there(asked.logits)

    ours, theirs = before.clone(), before.clone()
    kernel.penalise(ours, chains, punished)
    apply_penalties(theirs, slots, tokens, places, *punished)
    assert not torch.equal(ours, before)
    assert torch.equal(ours, theirs)

    ours, theirs = before.clone(), before.clone()
    kernel.ban(ours, chains, listed, said, WORDS)
    apply_bad_words(theirs, slots, *listed, *said, tokens, places, WORDS)
    assert torch.isinf(ours).any()
    assert torch.equal(ours, theirs)

    forced = 0
    for seed in range(len(MARKERS)):
        of = there(thinking(asked, seed)[0])
        ours, theirs = before.clone(), before.clone()
        kernel.end_thinking(ours, chains, of, said)
        requests, nowhere = torch.arange(SLOTS, device=device).int(), torch.full_like(of.last_starts, -1)
        text = said.tokens, said.total_lens, tokens, places
        cache = nowhere.clone(), nowhere.clone(), torch.zeros_like(nowhere)
        apply_thinking_budget(theirs, requests, slots, of.budgets, *text, *cache, *of[3:])
        thinks = of.budgets >= 0  # vLLM looks for no markers of others
        assert torch.equal(cache[0][thinks], of.last_starts[thinks])
        assert torch.equal(cache[1][thinks], of.last_ends[thinks])
        assert torch.equal(ours, theirs)
        forced += int((ours == 1.0e9).sum())
    assert forced > 50


@pytest.mark.gpu
def test_on_chains_logits_are_vllms_to_the_last_bit() -> None:
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    check_beside_vllm("cuda")
