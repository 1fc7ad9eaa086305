"""What a target and a drafter have in common, and which method drafts best across their vocabularies.

Everything here is about speed: each of the methods leaves the distribution of the output as it is. Needs no torch.
"""

from dataclasses import dataclass
from math import ceil

from vllm_specext.methods.foreign_vocab.distributions.overlap import coverage, shared_tokens
from vllm_specext.methods.foreign_vocab.small_vocabulary import why_unsuitable
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import Vocabulary

ENOUGH = 0.95
"""Share of a text's tokens from which on drafting them directly beats converting text."""

DRAFTED = 6
"""Tokens that the drafter writes ahead; 5 to 8 are usual in serving."""


@dataclass(frozen=True)
class Comparison:
    shared: int
    """Number of tokens that both vocabularies have."""
    of_target: float
    """Share of the target's vocabulary that is shared."""
    of_drafter: float
    """Share of the drafter's vocabulary that is shared."""
    coverage: float
    """Share of the text's target tokens that the drafter has too."""
    target_bytes: float
    """Bytes per token of the text in the target's tokens."""
    drafter_bytes: float
    """Bytes per token of the text in the drafter's tokens."""
    same: bool
    """Whether the vocabularies are one and the same."""

    @property
    def tokens_per_drafted(self) -> float:
        """Target tokens per token of the drafter."""
        return self.drafter_bytes / self.target_bytes


@dataclass(frozen=True)
class Advice:
    method: str
    num_speculative_tokens: int | None
    """``None`` where the method makes no sense."""
    why: str


def compare(target: Vocabulary, drafter: Vocabulary, text: str) -> Comparison:
    """``text`` is not empty."""
    pairs = shared_tokens(target.token_bytes, drafter.token_bytes, target_ends=target.ends, drafter_ends=drafter.ends)
    sizes = [_size(vocabulary) for vocabulary in (target, drafter)]
    ids, drafted = target.encode(text), drafter.encode(text)
    length = len(text.encode())
    return Comparison(
        shared=len(pairs),
        of_target=len(pairs) / sizes[0],
        of_drafter=len(pairs) / sizes[1],
        coverage=coverage(ids, set(pairs.values())),
        target_bytes=length / max(len(ids), 1),
        drafter_bytes=length / max(len(drafted), 1),
        same=sizes == [len(pairs)] * 2 and all(d == t for d, t in pairs.items()),
    )


def advise(drafter: Vocabulary, found: Comparison) -> list[Advice]:
    """The three methods, the best first."""
    converted = ceil(DRAFTED * found.tokens_per_drafted) + 1
    share = f"the drafter has {found.coverage:.1%} of the tokens in the text"
    if not found.shared:
        tli = Advice("tli", None, "the vocabularies share no token.")
    elif found.coverage < ENOUGH:
        tli = Advice("tli", DRAFTED, f"{share} and can draft no other.")
    else:
        tli = Advice("tli", DRAFTED, f"{share}, and drafts need no conversion.")
    slem = Advice("slem", converted, "text is converted on the host, so whatever the drafter writes is a draft.")
    problem = why_unsuitable(drafter.token_bytes)
    why = (
        problem or "its drafts are sampled: for requests near temperature 1; each costs several passes of the drafter."
    )
    slrs = Advice("slrs", None if problem else converted, why)
    return [slem, tli, slrs] if found.coverage < ENOUGH else [tli, slem, slrs]


def _size(vocabulary: Vocabulary) -> int:
    """Tokens that could be shared: different texts, and one end."""
    return len(set(vocabulary.token_bytes) - {None, b""}) + bool(vocabulary.ends)
