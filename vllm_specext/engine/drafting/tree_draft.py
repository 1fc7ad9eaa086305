"""Draft trees on their way from a drafter to the next step's verification."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.requests import Drafting
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.tree.topology import Topology


@dataclass(frozen=True)
class TreeDraft:
    """Trees of ``R`` requests, and a chain for each that must not get a tree."""

    tokens: Tensor
    """``[R, N]`` int64; a request's padding follows its nodes."""
    topology: Topology
    chain: Callable[[], Tensor]
    """Tokens ``[R or more, L]`` of chains, made only where somebody needs one."""
    chain_lengths: Tensor | int
    """How many of them count: ``[R, 1]``, or one number for all."""
    num_nodes: Tensor | None = None
    """Nodes of each request, ``[R]``; ``None`` where there is no padding."""
    expected: Tensor | None = None
    """How many tokens of each tree are expected to be accepted, ``[R]`` float32; ``None`` where nobody says."""

    def part(self, requests: int) -> "TreeDraft":
        """The same for the first so many ``requests``."""
        topology = Topology(*(tensor[:requests] for tensor in vars(self.topology).values()))
        rows: dict[str, Any] = {
            name: value[:requests] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, topology=topology, **rows)

    def with_chains(self, chosen: Tensor) -> "TreeDraft":
        """Chains for the requests that are ``chosen`` ``[R, 1]`` bool, of the same shapes."""
        requests, nodes = self.tokens.shape
        path = self.chain()[:requests, :nodes]
        padded = torch.zeros_like(self.tokens)
        padded[:, : path.shape[1]] = path
        chains = Topology.chain(requests, nodes, self.tokens.device).padded_after(self.chain_lengths)
        num_nodes = self.num_nodes
        if num_nodes is not None:
            assert isinstance(self.chain_lengths, Tensor)
            num_nodes = torch.where(chosen[:, 0], self.chain_lengths[:, 0], num_nodes)
        return replace(
            self,
            tokens=torch.where(chosen, padded, self.tokens),
            topology=self.topology.where(chosen, chains),
            num_nodes=num_nodes,
        )


def hand_over(draft: TreeDraft, batch: InputBatch, model_state: Any) -> TreeDraft:
    """Keep the trees for the next step of the target with this ``model_state``, with chains for requests that need
    them. Returns what was kept."""
    needs_chain = model_state.drafting[batch.idx_mapping_np] != Drafting.TREE
    if needs_chain.any():
        draft = draft.with_chains(async_tensor_h2d(needs_chain, device=draft.tokens.device)[:, None])
    slots = batch.idx_mapping, batch.idx_mapping_np
    model_state.steps.trees.write(*slots, draft.topology, needs_chain, expected=draft.expected)
    return draft


def hand_over_chains(length: int, nodes: int, batch: InputBatch, trees: TreeStates) -> None:
    """The same where every request was drafted a chain of ``length`` tokens, padded to the ``nodes`` that the scheduler
    counts on."""
    chains = Topology.chain(batch.num_reqs, nodes, trees.device).padded_after(length)
    trees.write(batch.idx_mapping, batch.idx_mapping_np, chains, True)
