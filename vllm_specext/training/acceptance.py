"""How many drafted tokens a target would accept, measured without a server.

The text is given (a target's own greedy output, or any other), so that all positions are drafted from at once: a
drafted token is accepted when it is the text's token and all before it in the chain were.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm import tqdm

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Acceptance:
    tokens_per_verification: float
    """Accepted tokens plus the target's own one, per verification, decoding every row from its prompt on."""
    rate_at_depth: tuple[float, ...]
    """The share of positions at which the chain's first 1, 2, ... tokens are all accepted."""
    verifications: int


def accepted_tokens(drafts: Tensor, rows: Tensor) -> Tensor:
    """``[N, T - 1 - chain]`` accepted tokens of ``drafts`` ``[N, T - 1, chain]``, of which those at ``s`` were made
    when token ``s + 1`` of ``rows`` ``[N, T]`` was the last one known."""
    truth = rows[:, 2:].unfold(1, drafts.shape[2], 1)
    return (drafts[:, : truth.shape[1]] == truth).cumprod(dim=-1).sum(dim=-1)


def summarise(accepted: Tensor, prompt_length: int, chain: int) -> Acceptance:
    """The acceptance that follows from the result of `accepted_tokens` for chains of ``chain`` tokens, counted after
    ``prompt_length`` tokens."""
    usable = accepted[:, prompt_length - 1 :]
    steps = [a for row in usable.tolist() for a in _walk(row)]
    return Acceptance(
        tokens_per_verification=sum(steps) / len(steps) + 1,
        rate_at_depth=tuple(float((usable >= depth).float().mean()) for depth in range(1, chain + 1)),
        verifications=len(steps),
    )


def _walk(accepted: Sequence[int]) -> list[int]:
    """The entries that decoding visits: each verification moves on by the accepted tokens and one more."""
    visited, position = [], 0
    while position < len(accepted):
        visited.append(accepted[position])
        position += accepted[position] + 1
    return visited


@torch.no_grad()
def greedy_continuations(target: "PreTrainedModel", prompts: Tensor, length: int, batch: int = 64) -> Tensor:
    """``prompts`` ``[N, P]`` with the target's own next ``length`` tokens after each: ``[N, P + length]``.

    Ends of text are tokens like any other here: the rows all stay full.
    """
    done = []
    parts = prompts.split(batch)
    for part in tqdm(parts, desc="continuations", mininterval=5, disable=len(parts) < 4):
        tokens, inputs, cache = [part], part, None
        for _ in range(length):
            output = target(inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            inputs, cache = output.logits.argmax(dim=-1), output.past_key_values
            tokens.append(inputs)
        done.append(torch.cat(tokens, dim=1))
    return torch.cat(done)
