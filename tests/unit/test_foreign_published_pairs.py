"""Pairs that are served: SmolLM2 and Llama 3.2 draft for Qwen2.5. Greedy and sampled drafts become the target's tokens.

The tokenizers cut texts as the published ones do. Whose weights draft what does not matter here: a greedy drafter
writes what the target will, and a sampled one anything at all.
"""

import unicodedata

import pytest
import torch
from torch import Tensor

from tests.unit.foreign_tokenizers import texts
from tests.unit.published_tokenizers import NUMBERS, PAIRS, PUBLISHED, published
from tests.unit.test_foreign_bridge import by_bytes, recovered
from tests.unit.test_foreign_intersection import emitted
from vllm_specext.methods.foreign_vocab.distributions.intersection import Intersection
from vllm_specext.methods.foreign_vocab.distributions.overlap import shared_tokens
from vllm_specext.methods.foreign_vocab.text.bridge import Bridge
from vllm_specext.methods.foreign_vocab.tokenizers.utf8 import leading
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import Vocabulary

EITHER_WAY = pytest.mark.parametrize(("target", "drafter"), PAIRS)
TEXTS = texts() | {"numbers": NUMBERS}
STEPS, DRAFTED = 60, 6


def cuts(name: str, text: str) -> list[str]:
    """The words that no token reaches across."""
    found = PUBLISHED[name]().backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [word.translate({ord("Ċ"): "\n", ord("Ġ"): " "}) for word, _ in found]


def test_the_tokenizers_cut_as_the_published_ones_do() -> None:
    assert cuts("qwen", "12345") == cuts("smollm", "12345") == list("12345")
    assert cuts("llama", "12345") == ["123", "45"]
    # Signs take a new line along, but not where GPT-2's words are cut.
    assert cuts("qwen", "def f():\n") == cuts("llama", "def f():\n") == ["def", " f", "():\n"]
    assert cuts("smollm", "def f():\n") == ["def", " f", "():", "\n"]
    decomposed = unicodedata.normalize("NFD", "naïve")
    assert published("qwen").encode(decomposed) == published("qwen").encode("naïve")
    assert published("smollm").bytes_of(published("smollm").encode(decomposed)) == decomposed.encode()


# Greedy drafts.


@EITHER_WAY
@pytest.mark.parametrize("kind", TEXTS)
def test_what_a_drafter_that_agrees_with_the_target_writes_is_recovered(target: str, drafter: str, kind: str) -> None:
    assert recovered(published(target), published(drafter), TEXTS[kind], by_bytes) >= 0.98


@EITHER_WAY
def test_encoding_the_new_text_alone_recovers_less(target: str, drafter: str) -> None:
    def alone(bridge: Bridge, drafted: list[int]) -> list[int]:
        return published(target).encode(PUBLISHED[drafter]().decode(drafted))

    assert recovered(published(target), published(drafter), TEXTS["Chinese"], alone) < 0.6


# Sampled drafts.


class Sampled:
    """A drafter that draws: tokens of what the target will write, and at every fourth place any token at all."""

    def __init__(self, drafter: Vocabulary, seed: int) -> None:
        self.drafter = drafter
        self.generator = torch.Generator().manual_seed(seed)
        self.ordinary = [id for id, text in enumerate(drafter.token_bytes) if text]

    def below(self, count: int) -> int:
        return int(torch.randint(count, (1,), generator=self.generator))

    def draft(self, rest: str) -> list[int]:
        likely = self.drafter.encode(rest[: 20 * DRAFTED])[:DRAFTED]
        return [id if self.below(4) else self.ordinary[self.below(len(self.ordinary))] for id in likely]


@EITHER_WAY
@pytest.mark.parametrize("kind", TEXTS)
def test_sampled_drafts_become_tokens_of_the_same_text_and_the_drafter_follows_what_was_kept(
    target: str, drafter: str, kind: str
) -> None:
    theirs, ours = published(target), published(drafter)
    text = TEXTS[kind]
    ids, data = theirs.encode(text), text.encode()
    sampled, bridge = Sampled(ours, seed=3), Bridge(theirs, ours, {})
    done, new, accepted, checked = 0, 5, 0, 0
    for _ in range(STEPS):
        bridge.commit(ids[done : done + new])
        done += new
        if done >= len(ids):
            break
        committed = theirs.bytes_of(ids[:done])
        seen = ours.bytes_of(bridge.draft_ids)
        # The drafter has read all that the target kept, but for a character that is not whole yet.
        assert seen == leading(committed).encode()
        drafted = sampled.draft(data[len(seen) :].decode())
        found = bridge.convert(drafted).ids
        written = ours.bytes_of(drafted)
        waiting = committed[len(seen) :]
        whole = leading(committed + written[len(waiting) :])
        is_finished = written.startswith(waiting) and len(whole.encode()) >= len(committed)
        if is_finished and unicodedata.is_normalized("NFC", whole):
            checked += 1
            # Every whole character that was drawn is proposed, and nothing else.
            assert theirs.bytes_of(found) == whole.encode()[len(committed) :]
        kept = next((n for n, (a, b) in enumerate(zip(found, ids[done:], strict=False)) if a != b), len(found))
        accepted += kept
        new = kept + 1
    assert checked > STEPS / 4
    assert accepted > 0


@EITHER_WAY
def test_a_text_that_the_target_normalizes_makes_a_worse_draft_and_no_other_text_of_the_drafters(
    target: str, drafter: str
) -> None:
    theirs, ours = published(target), published(drafter)
    bridge = Bridge(theirs, ours, {})
    bridge.commit(theirs.encode("Il est na"))
    decomposed = unicodedata.normalize("NFD", "ïf et résigné")
    drafted = ours.encode(decomposed)
    found = bridge.convert(drafted).ids
    assert unicodedata.normalize("NFC", theirs.bytes_of(found).decode()) in ("", "ïf et résigné")
    bridge.commit(theirs.encode("ïf"))
    assert ours.bytes_of(bridge.draft_ids).decode() == "Il est naïf"


def test_a_drawn_end_of_turn_is_the_targets() -> None:
    for target, drafter in PAIRS:
        theirs, ours = published(target), published(drafter)
        (end,) = PUBLISHED[target]().convert_tokens_to_ids(["<|im_end|>"])
        own = PUBLISHED[drafter]().eos_token_id
        bridge = Bridge(theirs, ours, {end: (own,)})
        bridge.commit(theirs.encode("That is"))
        assert bridge.convert([*ours.encode(" all."), own]).ids == [*theirs.encode(" all."), end]


def probabilities(rows: int, size: int, seed: int) -> Tensor:
    drawn = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (3 * drawn).softmax(dim=1)


@EITHER_WAY
def test_drafts_that_are_drawn_from_the_shared_tokens_leave_the_targets_distribution_as_it_is(
    target: str, drafter: str
) -> None:
    theirs, ours = published(target), published(drafter)
    pairs = shared_tokens(
        theirs.token_bytes, ours.token_bytes, target_ends=sorted(theirs.ends), drafter_ends=sorted(ours.ends)
    )
    texts_of_both = [(ours.token_bytes[one], theirs.token_bytes[other]) for one, other in pairs.items()]
    assert all(one == other for one, other in texts_of_both)
    assert len(pairs) > 600
    shared = Intersection(pairs, len(theirs.token_bytes))
    p = probabilities(8, len(theirs.token_bytes), 1)
    q = probabilities(8, len(ours.token_bytes), 2)[:, shared.kept]
    drawn = shared.scatter(q / q.sum(dim=1, keepdim=True), 0)
    torch.testing.assert_close(emitted(p, drawn, drawn), p, rtol=0, atol=1e-12)
    # A fault that this must notice: the probabilities belong to other tokens.
    told = shared.scatter((q / q.sum(dim=1, keepdim=True)).roll(1, dims=1), 0)
    assert (emitted(p, drawn, told) - p).abs().sum(dim=1).min() > 0.1
