"""The layout in torch."""

import torch
from torch import Tensor

from vllm_specext.tree.topology import Topology


def lay_out(
    slots: Tensor,
    starts: Tensor,
    seq_lens: Tensor,
    prefill_lens: Tensor,
    trees: Topology,
    causal: Tensor,
    positions: Tensor,
    last_position: int,
    prefix_lens: Tensor,
    visible: Tensor,
) -> Tensor:
    requests, nodes = len(slots), causal.shape[0]
    prefix_lens[:requests] = seq_lens - starts.diff()
    has_draft = prefix_lens[:requests] >= prefill_lens[slots]
    visible[:requests] = torch.where(has_draft[:, None, None], trees.ancestors[slots], causal)
    node = torch.arange(nodes, device=positions.device)
    rows = starts[:-1, None] + node
    # Places beyond a request's own rows all go to one more element at the end, which is cut off below.
    rows = torch.where(rows < starts[1:, None], rows, len(positions))
    chain = torch.cat((positions, positions.new_zeros(1)))
    by_depth = chain[rows] + torch.where(has_draft[:, None], trees.depths[slots] - node, 0)
    laid_out = chain.scatter(0, rows.flatten(), by_depth.clamp(max=last_position).flatten())
    positions.copy_(laid_out[:-1])
    return chain[:-1]


def accepted_rows(starts: Tensor, path: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor]:
    starts = starts[:, None]
    place = torch.arange(path.shape[1], device=path.device)
    on_path = place < accepted[:, None]
    return starts + torch.where(on_path, path, 0), starts + torch.where(on_path, place, 0)
