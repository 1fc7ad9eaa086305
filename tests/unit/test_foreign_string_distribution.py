"""SLRS's proposal against the enumeration of everything that a drafter can write."""

import math
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vllm_specext.methods.foreign_vocab.distributions.string_distribution import SpellingFrontier, StringDistribution
from vllm_specext.methods.foreign_vocab.small_vocabulary import LARGEST, why_unsuitable

Path = tuple[int, ...]
Table = Sequence[bytes | None]
Drafter = Callable[[Path], Tensor]

TARGET = [None, b"a", b"b", b"c", b"ab", b"abc", b"abca", b"bc", b"bb", b"ca", b"cab", b"ab", b"d", None]
TARGET_END = 13
DRAFTER = [b"ab", b"a", None, b"b", b"c", b"bca", b"d", None, b"a", b"cab"]
DRAFTER_END = 2
EXACT = {"rtol": 0, "atol": 1e-12}


def random_drafter(seed: int, size: int = len(DRAFTER)) -> Drafter:
    """Log-probabilities ``[size]`` after what was drafted, float64."""

    def log_probs(path: Path) -> Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(repr((seed, path)).encode()))
        return torch.randn(size, generator=generator, dtype=torch.float64).mul(1.5).log_softmax(dim=0)

    return log_probs


def string_distribution(width: int = 40, target: Table = TARGET, drafter: Table = DRAFTER) -> StringDistribution:
    return StringDistribution(target, drafter, target_ends=[TARGET_END], drafter_ends=[DRAFTER_END], width=width)


def run(
    proposal: StringDistribution, drafters: Sequence[Drafter], levels: int = 5
) -> Iterator[tuple[SpellingFrontier, list[list[Path]]]]:
    """Grow ``levels`` levels, one request per drafter; the frontiers and the paths of their spellings."""
    proposal.begin(len(drafters))
    paths: list[list[Path]] = [[()] for _ in drafters]
    for _ in range(levels):
        rows = zip(drafters, paths, strict=True)
        frontier = proposal.grow(torch.stack([torch.stack([q(path) for path in row]) for q, row in rows]))
        choices = zip(paths, frontier.parents.tolist(), frontier.tokens.tolist(), strict=True)
        paths = [[row[p] + (d,) for p, d in zip(ps, ds, strict=True)] for row, ps, ds in choices]
        yield frontier, paths


def longest_match(text: bytes, target: Table) -> int | None:
    found = [token for token in target if token and text.startswith(token)]
    return target.index(max(found, key=len)) if found else None


def slow_probabilities(
    q: Drafter, target: Table, drafter: Table, followed: Callable[[Path], bool] = lambda _: True
) -> Tensor:
    """Enumerate: a text ends where it is no proper prefix of a token, at a marker, and where it is not followed."""
    found: Counter[int | None] = Counter()

    def write(path: Path, text: bytes, pi: float) -> None:
        for d, step in enumerate(q(path).exp().tolist()[: len(drafter)]):
            if path == () and d == DRAFTER_END:
                found[TARGET_END] += pi * step
                continue
            longer = text + (drafter[d] or b"")
            inside = any(token and token != longer and token.startswith(longer) for token in target)
            if drafter[d] and inside and followed((*path, d)):
                write((*path, d), longer, pi * step)
            else:
                found[longest_match(longer, target)] += pi * step

    write((), b"", 1)
    del found[None]
    masses = torch.tensor([found[token] for token in range(len(target))], dtype=torch.float64)
    return masses / masses.sum()


def test_the_proposal_is_that_of_the_longest_token_that_the_drafter_writes() -> None:
    proposal, drafters = string_distribution(), [random_drafter(seed) for seed in range(6)]
    *_, (last, _) = run(proposal, drafters)
    assert (last.log_pi == -math.inf).all()  # everything was followed
    expected = torch.stack([slow_probabilities(q, TARGET, DRAFTER) for q in drafters])
    torch.testing.assert_close(proposal.probabilities(), expected, **EXACT)
    assert (expected[:, TARGET.index(b"abca")] > 0).all()  # which takes two or more of the drafter's tokens


@settings(max_examples=25)
@given(
    target=st.lists(st.text("ab", min_size=1, max_size=4).map(str.encode), min_size=1, max_size=8),
    drafter=st.lists(st.none() | st.text("abc", max_size=3).map(str.encode), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_it_is_for_any_vocabularies(target: list[bytes], drafter: list[bytes | None], seed: int) -> None:
    # Both ends at their usual places; "a" is there so that something is reached.
    target, drafter = [*target, *[b"a"] * TARGET_END][:TARGET_END], [b"a", b"", None, *drafter]
    table: Table = [*target, None]
    proposal, q = string_distribution(400, table, drafter), random_drafter(seed, len(drafter))
    for _ in run(proposal, [q], levels=4):
        pass
    torch.testing.assert_close(proposal.probabilities()[0], slow_probabilities(q, table, drafter), **EXACT)


@pytest.mark.parametrize(("width", "levels"), [(1, 5), (2, 5), (3, 2), (40, 1)])
def test_what_is_not_followed_stays_with_the_longest_token_so_far(width: int, levels: int) -> None:
    proposal, drafters = string_distribution(width), [random_drafter(seed) for seed in range(4)]
    followed: list[set[Path]] = [set() for _ in drafters]
    for level, (frontier, paths) in enumerate(run(proposal, drafters, levels), 1):
        assert all(tensor.shape == (4, width) for tensor in frontier)
        for seen, row, scores in zip(followed, paths, frontier.log_pi.tolist(), strict=True):
            if level < levels:
                seen |= {path for path, score in zip(row, scores, strict=True) if score > -math.inf}
    expected = [
        slow_probabilities(q, TARGET, DRAFTER, seen.__contains__) for q, seen in zip(drafters, followed, strict=True)
    ]
    torch.testing.assert_close(proposal.probabilities(), torch.stack(expected), **EXACT)
    assert not torch.allclose(
        proposal.probabilities(), torch.stack([slow_probabilities(q, TARGET, DRAFTER) for q in drafters])
    )


def test_the_frontier_is_the_most_likely_spellings_that_can_become_a_longer_token() -> None:
    q = random_drafter(0)
    (frontier, paths), *_ = run(string_distribution(3), [q])
    open_ends = [d for d, text in enumerate(DRAFTER) if text in (b"ab", b"a", b"b", b"c", b"bc")]
    best = sorted(open_ends, key=lambda d: -q(())[d].item())[:3]
    assert paths[0] == [(d,) for d in best]
    torch.testing.assert_close(frontier.log_pi[0], q(())[best])


def test_a_byte_drafters_distribution_is_the_product_of_its_bytes() -> None:
    drafter: Table = [b"a", b"b", None, b"c", b"d"]
    q, proposal = random_drafter(3, len(drafter)), string_distribution(drafter=drafter)
    for _ in run(proposal, [q]):
        pass

    def reach(text: bytes) -> float:
        path = tuple(drafter.index(bytes([byte])) for byte in text)
        return math.exp(sum(q(path[:i])[d].item() for i, d in enumerate(path)))

    found = dict(zip(TARGET, proposal.probabilities()[0].tolist(), strict=True))
    assert found[b"abca"] == pytest.approx(reach(b"abca"), abs=1e-12)
    ab = proposal.probabilities()[0, TARGET.index(b"ab")].item()
    assert ab == pytest.approx(reach(b"ab") - reach(b"abc"), abs=1e-12)
    assert found[b"b"] == pytest.approx(reach(b"b") - reach(b"bb") - reach(b"bc"), abs=1e-12)


def test_of_equal_target_tokens_only_the_lowest_is_proposed() -> None:
    proposal = string_distribution()
    for _ in run(proposal, [random_drafter(1)]):
        pass
    assert proposal.probabilities()[0, TARGET.index(b"ab")] > 0
    assert proposal.probabilities()[0, 11] == 0


def test_padding_of_the_drafters_logits_is_no_token() -> None:
    proposal, q = string_distribution(), random_drafter(1)
    proposal.begin(1)
    proposal.grow(q(())[None, None])
    before = proposal.probabilities()
    proposal.begin(1)
    proposal.grow(torch.cat((q(()), torch.zeros(3)))[None, None])
    assert torch.equal(proposal.probabilities(), before)


def test_long_tokens_are_never_drafted_and_long_steps_of_the_drafter_count_up_to_there() -> None:
    target, drafter = [b"x", b"x" * 16, b"x" * 17], [b"x", b"x" * 20, b"y", b"x" * 16]
    proposal = StringDistribution(target, drafter, target_ends=[], drafter_ends=[], width=2)
    proposal.begin(1)
    frontier = proposal.grow(torch.tensor([0.5, 0.2, 0.2, 0.1]).log()[None, None])
    assert frontier.tokens[0, 0] == 0
    assert frontier.log_pi[0, 1] == -math.inf  # the others have left the longest token that can be drafted
    torch.testing.assert_close(proposal.probabilities(), torch.tensor([[0.625, 0.375, 0.0]]))


@pytest.mark.parametrize("nothing", [math.nan, -math.inf])
def test_a_drafter_that_says_nothing_gets_the_shortest_token(nothing: float) -> None:
    proposal = string_distribution()
    proposal.begin(2)
    log_probs = torch.full((2, 1, len(DRAFTER)), nothing)
    log_probs[1, 0, TARGET_END % len(DRAFTER)] = 0  # the drafter's "b" for certain
    assert not proposal.grow(log_probs).log_pi.isnan().any()
    assert proposal.probabilities().argmax(dim=1).tolist() == [TARGET.index(b"a"), TARGET.index(b"b")]
    assert proposal.probabilities().dtype == torch.float32
    assert torch.equal(proposal.probabilities().sum(dim=1), torch.ones(2))


def test_drafts_written_token_by_token_and_verified_with_their_probabilities_emit_the_targets_distribution() -> None:
    rounds, q, dice = 20_000, random_drafter(4), random.Random(5)
    proposal = string_distribution()
    for _ in run(proposal, [q]):
        pass
    p = torch.randn(len(TARGET), generator=torch.Generator().manual_seed(6), dtype=torch.float64).softmax(dim=0)
    ratio, left = (p / proposal.probabilities()[0]).tolist(), (p - proposal.probabilities()[0]).clamp(min=0).tolist()

    @cache
    def weights(path: Path) -> list[float]:
        return q(path).exp().tolist()

    @cache
    def draft(path: Path) -> int | None:
        """The token that the drafter has written; ``None`` where it has to go on."""
        text = b"".join(DRAFTER[d] or b"" for d in path)
        if DRAFTER[path[-1]] and any(token and token != text and token.startswith(text) for token in TARGET):
            return None
        return TARGET_END if path == (DRAFTER_END,) else longest_match(text, TARGET)

    emitted, accepted = Counter[int](), 0
    while emitted.total() < rounds:
        path: Path = tuple(dice.choices(range(len(DRAFTER)), weights(())))
        if path[0] == 7:
            continue  # a marker that is no end: the distribution is that of the other proposals
        while (token := draft(path)) is None:
            path += tuple(dice.choices(range(len(DRAFTER)), weights(path)))
        if dice.random() < ratio[token]:
            accepted += 1
        else:
            (token,) = dice.choices(range(len(TARGET)), left)
        emitted[token] += 1
    distance = sum(abs(emitted[token] / rounds - p[token].item()) for token in range(len(TARGET))) / 2
    assert distance < 0.02
    assert accepted / rounds == pytest.approx(torch.minimum(p, proposal.probabilities()[0]).sum().item(), abs=0.02)


ASCII = [bytes([byte]) for byte in range(128)]


def test_slrs_takes_drafters_of_bytes_or_few_tokens() -> None:
    assert why_unsuitable([bytes([byte]) for byte in range(256)] + [None]) is None
    assert why_unsuitable([*ASCII, *(b"%d" % number for number in range(LARGEST - 200))]) is None


def test_slrs_sends_other_drafters_to_slem() -> None:
    large = why_unsuitable([*ASCII, *(b"%d" % number for number in range(10, LARGEST))])
    assert large
    assert "at most 4096 tokens, and this one has 4214; use 'slem'" in large
    poor = why_unsuitable([text for text in ASCII if text != b"e"])
    assert poor
    assert "none for 'e'; use 'slem'" in poor
