"""What a method declares: what drafting reads, where the drafter keeps its keys and values, and which features of vLLM
it has been built and tried with.

Refusals, vLLM's configuration and the start-up log follow from it. A method is refused every feature of
``refusals.FEATURES`` that it does not declare to bear, so that a new one starts with all of them closed.
"""

from dataclasses import dataclass
from enum import Enum


class Reads(Enum):
    """What drafting reads from the target's step, beside the tokens."""

    NOTHING = "nothing"
    HIDDEN_STATES = "the target's last hidden states"
    AUXILIARY_STATES = "hidden states that several of the target's layers leave"
    KEYS_AND_VALUES = "the target's keys and values"
    LAYERS = "the target's layers, which draft themselves"
    TEXT = "the text"
    GIVEN = "a text that the request gives"


class Keeps(Enum):
    """Where the drafter keeps its keys and values."""

    NOWHERE = "nowhere"
    BESIDE_THE_TARGETS = "in layers of its own, in vLLM's cache"
    IN_THE_TARGETS = "in the target's KV slots after the accepted prefix"
    APART = "in a cache of its own, which vLLM does not know"


@dataclass(frozen=True)
class Declaration:
    reads: Reads
    keeps: Keeps
    bears: frozenset[str] = frozenset()
    """Names of ``refusals.FEATURES`` that the method works with."""
    chains_bear: frozenset[str] = frozenset()
    """Names of ``refusals.FEATURES`` that the method works with as long as it drafts chains."""
    last_block_stale: bool = False
    """Whether the drafter's keys of the last token in a cached block depend on the token after it. Another request may
    have another token there, so vLLM computes the last block of a cached prefix again."""
    takes_weights: bool = False
    """Whether the drafter can be given other weights while the server runs."""
