"""SLRS on vLLM's V2 runner (Timor et al., arXiv 2502.05202, Algorithm 3): string-level rejection sampling.

For every drafted token the distribution of what the drafter would write, as a token of the target, is found first and
the token then drawn from it (``distributions/string_distribution.py``). The drafter's spellings grow as a tree in its
own cache, one pass per level over the frontiers of all requests; then the drafter reads the drawn token in a fixed
spelling of its own, and the next one follows. vLLM's rejection sampler gets the distributions.
Shapes: ``A`` requests, ``W`` spellings followed, ``T`` and ``D`` the vocabularies, ``S`` longest spelling of a token.
"""

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_specext.engine.drafting.node_passes import Nodes
from vllm_specext.engine.standalone.captured_passes import PassKind
from vllm_specext.methods.foreign_vocab.distributions.string_distribution import StringDistribution
from vllm_specext.methods.foreign_vocab.sampling import SamplingSpeculator
from vllm_specext.methods.foreign_vocab.texts import Active
from vllm_specext.tree.topology import pack

LEVELS = 6
"""Passes for a drafted token, the one that read the text included. A token of the target can be drawn if at most so
many of the drafter's spell it."""

WIDTH = 8
"""Spellings that are followed at each level."""


class SlrsSpeculator(SamplingSpeculator):
    tree_levels = LEVELS

    def make_buffers(self) -> None:
        super().make_buffers()
        target, drafter = self.pairing.target, self.pairing.drafter
        self.proposal = StringDistribution(
            target.token_bytes,
            drafter.token_bytes,
            target_ends=target.ends,
            drafter_ends=drafter.ends,
            width=WIDTH,
            device=self.device,
        )
        spelled = self.pairing.spellings()
        width = max(map(len, spelled))
        padded = [ids + [0] * (width - len(ids)) for ids in spelled]
        self.spellings = torch.tensor(padded, dtype=torch.int64, device=self.device)
        self.spelling_lengths = torch.tensor([len(ids) for ids in spelled], dtype=torch.int64, device=self.device)
        self.itself = torch.eye(WIDTH, dtype=torch.bool, device=self.device)

    def captured_kinds(self) -> Collection[PassKind]:
        spelling = self.spellings.shape[1]
        return {PassKind(spelling, spelling), *(PassKind(WIDTH, level * WIDTH) for level in range(1, LEVELS))}

    def room(self, nodes: int) -> int:
        return (nodes - 1) * self.spellings.shape[1] + (LEVELS - 1) * WIDTH

    def draft_for(self, active: Active, nodes: int, temperature: Tensor, seeds: Tensor) -> tuple[Tensor, np.ndarray]:
        hidden, ends, longest = active.hidden, active.ends, int(active.ends_np.max())
        scale = temperature[active.slots][:, None]
        scale = torch.where(scale > 0, scale, 1)
        found = []
        for place in range(nodes):
            probabilities = self._propose(hidden, ends, longest)
            # The sampler divides by the temperature, but drafts are drawn from the distribution as it is.
            found.append(self.choose(probabilities.log() * scale, active, place, temperature, seeds))
            if place + 1 < nodes:
                hidden, ends = self._append(found[-1], ends, longest)
                longest += self.spellings.shape[1]
        return torch.stack(found, dim=1), np.full(len(active.texts), nodes)

    def _propose(self, hidden: Tensor, ends: Tensor, longest: int) -> Tensor:
        """Probabilities ``[A, T]`` of the next token after texts of ``ends`` ``[A]`` of the drafter's tokens."""
        requests = len(ends)
        self.proposal.begin(requests)
        frontier = self.proposal.grow(self._log_probs(hidden)[:, None])
        sees = self.itself.new_zeros(requests, 1, 0)
        for level in range(LEVELS - 1):
            above = sees.gather(1, frontier.parents[..., None].expand(-1, -1, sees.shape[2]))
            sees = torch.cat((above, self.itself.expand(requests, -1, -1)), dim=2)
            nodes = (level + 1) * WIDTH
            frontier_nodes = Nodes(
                ids=frontier.tokens,
                positions=(ends + level)[:, None].expand(-1, WIDTH),
                slots=ends[:, None] + level * WIDTH + torch.arange(WIDTH, device=self.device),
                written=torch.isfinite(frontier.log_pi),
                prefix_lens=ends,
                visible=pack(sees),
            )
            hidden = self.drafter.nodes(frontier_nodes, nodes, longest + nodes)
            frontier = self.proposal.grow(self._log_probs(hidden).unflatten(0, (requests, WIDTH)))
        return self.proposal.probabilities()

    def _append(self, tokens: Tensor, ends: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Have the drafter read ``tokens`` ``[A]`` of the target; returns hidden states ``[A, d]`` of the last that it
        read, and the new ends of the texts."""
        counts = self.spelling_lengths[tokens]
        return self.drafter.append(self.spellings[tokens], counts, ends, longest), ends + counts

    def _log_probs(self, hidden: Tensor) -> Tensor:
        log_probs: Tensor = self.model.compute_logits(hidden).float().log_softmax(dim=-1)
        # A head may have more rows than the tokenizer has tokens.
        return pad(log_probs, (0, len(self.pairing.drafter.token_bytes) - log_probs.shape[-1]), value=-torch.inf)
