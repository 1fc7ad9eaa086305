"""Rows with mask tokens, by which a drafter gives all positions of a draft in one pass.

The rows go on after the text, one for each position after the first. A row sees the text and the rows before it, and
does not know what is drafted at other positions. So the most likely nodes of all paths are found at once
(``marginals.py``). The rows' own keys and values lie in the KV slots after the accepted prefix, and are
overwritten by the next step.
Shapes: ``R`` requests, ``W`` rows of an accepted path, ``M`` rows with mask tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.engine.drafting.node_passes import Nodes
from vllm_specext.engine.drafting.paths import PathInputs
from vllm_specext.tree.topology import Topology


@dataclass(frozen=True)
class MaskRows:
    token: int
    """The mask token."""
    in_order: Tensor
    """Rows of a pass that each of them sees where they are a text, as bits, ``[rows, words]``."""

    @classmethod
    def of(cls, token: int, most: int, device: torch.device) -> "MaskRows":
        """``most``: rows that a request has in a pass at most."""
        return cls(token, Topology.chain(1, most - 1, device).ancestors[0])

    def after_paths(self, paths: PathInputs, written: Tensor, masks: int, features: Tensor | None = None) -> Nodes:
        """The rows of ``paths``, and ``masks`` rows after the last one of each that counts. The cache gets those of
        requests that are ``written`` ``[R]``. ``features`` ``[R, W + M, d]``."""
        last, further = paths.ends[:, None], self._further(masks)
        # A bit stands for the KV slot so many after the first row's.
        after = last + 1 + further
        place = torch.cat((torch.minimum(paths.place, last), after), dim=1)
        slots = torch.cat((paths.slots, paths.starts[:, None] + after), dim=1)
        written = written[:, None]
        return Nodes(
            ids=torch.cat((paths.ids, self._tokens(len(last), masks)), dim=1),
            positions=slots,
            slots=slots,
            written=torch.cat((written & paths.counts, written.expand(-1, masks)), dim=1),
            prefix_lens=paths.starts,
            visible=self.in_order[place],
            features=features,
        )

    def after(self, ids: Tensor, starts: Tensor, written: Tensor, masks: int, features: Tensor | None = None) -> Nodes:
        """Rows with ``ids`` ``[R, n]`` from the KV slots ``starts`` ``[R]`` on, and ``masks`` rows after them."""
        requests, count = len(ids), ids.shape[1] + masks
        slots = starts[:, None] + self._further(count)
        return Nodes(
            ids=torch.cat((ids, self._tokens(requests, masks)), dim=1),
            positions=slots,
            slots=slots,
            written=written[:, None],
            prefix_lens=starts,
            visible=self.in_order[:count].expand(requests, -1, -1),
            features=features,
        )

    def drafting(self, paths: PathInputs, masks: int) -> Tensor:
        """Numbers of the rows of ``after_paths`` that draft, ``[R, 1 + M]``."""
        requests, width = paths.ids.shape
        places = torch.cat((paths.ends[:, None], width + self._further(masks).expand(requests, -1)), dim=1)
        return torch.arange(requests, device=places.device)[:, None] * (width + masks) + places

    def _tokens(self, requests: int, masks: int) -> Tensor:
        return torch.full((requests, masks), self.token, device=self.in_order.device)

    def _further(self, count: int) -> Tensor:
        return torch.arange(count, device=self.in_order.device)
