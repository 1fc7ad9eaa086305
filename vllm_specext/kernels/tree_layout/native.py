"""The layout in C++ on a CPU."""

import torch
from torch import Tensor

from vllm_specext.kernels.native.operators import INTEGER, LONG, WORD, Operator
from vllm_specext.tree.topology import Topology

LAY_OUT = Operator(
    "lay_out",
    {
        "slots": INTEGER,
        "starts": INTEGER,
        "seq_lens": INTEGER,
        "prefill_lens": INTEGER,
        "depths": INTEGER,
        "ancestors": WORD,
        "causal": WORD,
        "out_positions": LONG,
        "out_chain": LONG,
        "out_prefix_lens": INTEGER,
        "out_visible": WORD,
    },
    "int last_position",
)
ACCEPTED_ROWS = Operator(
    "accepted_rows",
    {"starts": INTEGER, "path": INTEGER, "accepted": INTEGER, "out_source": LONG, "out_destination": LONG},
)


def takes_step(
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
) -> bool:
    index = slots, starts, seq_lens, prefill_lens, trees.depths, trees.ancestors, causal
    return LAY_OUT.takes(*index, positions, positions, prefix_lens, visible)


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
    chain = torch.empty_like(positions)
    LAY_OUT.overload(
        slots, starts, seq_lens, prefill_lens, trees.depths, trees.ancestors, causal,
        positions, chain, prefix_lens, visible, last_position,
    )  # fmt: skip
    return chain


def takes_paths(starts: Tensor, path: Tensor, accepted: Tensor) -> bool:
    return ACCEPTED_ROWS.takes(starts, path, accepted)


def accepted_rows(starts: Tensor, path: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor]:
    source = torch.empty(path.shape, dtype=torch.int64)
    destination = torch.empty(path.shape, dtype=torch.int64)
    ACCEPTED_ROWS.overload(starts, path, accepted, source, destination)
    return source, destination
