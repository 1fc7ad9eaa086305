"""The verification walks in C++ on a CPU."""

import torch
from torch import Tensor

from vllm_specext.kernels.native.operators import INTEGER, LONG, Operator

_ROWS = {"drawn": INTEGER, "drafted": INTEGER, "cu_num_logits": INTEGER}
CHAIN = Operator("accept_chain", _ROWS | {"out_emitted": INTEGER, "out_num_sampled": INTEGER})
TREE = Operator(
    "accept_tree", _ROWS | {"parents": LONG, "out_emitted": INTEGER, "out_num_sampled": INTEGER, "out_path": LONG}
)


def takes_chains(drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor) -> bool:
    return len(drawn) > 0 and CHAIN.takes(drawn, drafted, cu_num_logits)


def accept_chain(drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    requests = cu_num_logits.shape[0] - 1
    emitted = drawn.new_empty(requests, width)
    num_sampled = torch.empty(requests, dtype=torch.int32)
    CHAIN.overload(drawn, drafted, cu_num_logits, emitted, num_sampled)
    return emitted, num_sampled


def takes_trees(drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor, parents: Tensor) -> bool:
    return len(drawn) > 0 and TREE.takes(drawn, drafted, cu_num_logits, parents)


def accept_tree(
    drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor, parents: Tensor, levels: int
) -> tuple[Tensor, Tensor, Tensor]:
    requests = len(parents)
    emitted, path = drawn.new_empty(requests, levels + 1), parents.new_empty(requests, levels + 1)
    num_sampled = torch.empty(requests, dtype=torch.int32)
    TREE.overload(drawn, drafted, cu_num_logits, parents, emitted, num_sampled, path)
    return emitted, num_sampled, path
