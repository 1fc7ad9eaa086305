"""vLLM's block drafters, DFlash's and DSpark's, on its V2 runner, drafting trees.

After every step the drafter takes in hidden states of several of the target's layers: those of each new token become a
key and a value in every layer of the drafter, at the token's own KV slot. They depend on nothing but the tokens up to
theirs, so that cached prefixes keep them. Then one pass runs over a block, the last sampled token and a mask token for
each position to draft; DSpark has one mask token fewer, because each row gives the token after its own. The rows see
the text or a window of it, and all of the block or its earlier rows, as each layer was trained (``sight.py``). What
they give, one feature for each position, becomes a tree (``trees.py``). The block's own keys and values lie in the KV
slots after the accepted prefix, and are overwritten by the next step.
Shapes: ``R`` requests, ``L`` levels, ``B`` rows of a block, ``W`` rows of an accepted path (levels + 1), ``T`` rows of
a step.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3_dflash2 import DFlashGroupedConv
from vllm.v1.worker.gpu.spec_decode.dflash.utils import load_dflash_model
from vllm.v1.worker.gpu.spec_decode.dspark.utils import load_dspark_model
from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.drafting.cache_groups import drafters_groups, wrap_own_layers
from vllm_specext.engine.drafting.loading import for_loading
from vllm_specext.engine.drafting.node_passes import CacheGroup, NodePasses, Nodes
from vllm_specext.engine.drafting.request_parts import request_parts
from vllm_specext.engine.drafting.rooted_speculator import RootedSpeculator
from vllm_specext.engine.drafting.run_model import run_model
from vllm_specext.engine.drafting.several_depths import Grown, Growth
from vllm_specext.engine.drafting.step import Step
from vllm_specext.engine.verification.layout import AcceptedPaths
from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.methods.block.scales import scale, scales_in
from vllm_specext.methods.block.trees import MakeTree, of_marginals, of_markov_head, of_selector
from vllm_specext.tree.topology import pack

Load = Callable[[Any, VllmConfig], Any]
"""Loads the drafter, with what it shares with the target."""


class BlockSpeculator(RootedSpeculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device, load: Load, make_tree: MakeTree) -> None:
        super().__init__(vllm_config, device)
        self.load, self.make_tree = load, make_tree
        config = self.draft_model_config.hf_config
        self.levels = self.sizes.largest.depth
        self.width: int = config.block_rows
        self.masks = torch.full((1, self.width - 1), get_parallel_drafting_token_id(config), device=device)
        seen = torch.ones(self.width, self.width, dtype=torch.bool, device=device)
        self.whole, self.earlier = pack(seen), pack(seen.tril())
        """What a block's rows see of it as bits, ``[B, words]``: all, or in causal layers those before them."""
        self.causal_layers: frozenset[str] = frozenset()
        self.path_states = torch.zeros(0, device=device)
        """Hidden states of the accepted paths' rows, ``[R W, states d]``, once their width is known."""
        self.passes: NodePasses[Tensor] = NodePasses(self._run, self.max_model_len, self._see)

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter: Any = self.load(target_model, for_loading(self.vllm_config))
        wrap_own_layers(self.vllm_config, target_attn_layer_names, self.sizes.largest.depth)
        config = self.draft_model_config.hf_config
        scale(drafter, target_model, scales_in(config))
        convolve_blocks(drafter, self.width)
        names = drafter.get_draft_kv_cache_layer_names()
        self.causal_layers = frozenset(
            name for name, is_causal in zip(names, config.causal_layers, strict=True) if is_causal
        )
        rows = self.max_num_reqs * self.paths.width
        self.path_states = torch.zeros(rows, drafter.model.fc.input_size, dtype=self.dtype, device=self.device)
        return drafter

    def set_attn(self, *args: Any) -> None:
        super().set_attn(*args)
        self.passes.groups = drafters_groups(self, self.draft_attn_layer_names)
        group_of = {name: group for group in self.passes.groups for name in group.layers}
        self.groups_by_layer = [(name, group_of[name]) for name in self.model.get_draft_kv_cache_layer_names()]

    def grow(self, growth: Growth) -> Grown:
        """The whole block is drafted for a smaller tree, too: the drafter was trained on nothing else."""
        requests, shape = growth.requests, growth.shape
        if growth.reads_paths:
            self.keep_paths(requests)
        parts = request_parts(requests, self.width, self.max_num_tokens)
        passed = [self._pass(part, growth.longest) for part in parts]
        roots = self.root_ids[:requests], self.roots.sharpness[:requests]
        return {shape.depth: self.make_tree(self.model, torch.cat(passed), *roots, shape, self.sizes.largest.top_k)}

    def _pass(self, part: slice, longest: int) -> Tensor:
        """Features of the drafted positions of a ``part`` of the requests, ``[requests, L, d]``."""
        requests = part.stop - part.start
        root = self.roots.starts[part] - self.root_slots
        slots = root[:, None] + torch.arange(self.width, device=self.device)
        nodes = Nodes(
            ids=torch.cat((self.root_ids[part, None], self.masks.expand(requests, -1)), dim=1),
            positions=slots,
            slots=slots,
            written=self.roots.written[part, None],
            prefix_lens=root,
            visible=self.whole.expand(requests, -1, -1),
        )
        features = self.passes(nodes, self.width, longest + self.width, part.start)
        return features.view(requests, self.width, -1)[:, -self.levels :]

    def _see(self, group: CacheGroup, rows: TreeRows) -> dict[str, TreeRows]:
        causal = replace(rows, visible=self.earlier.expand(len(rows.prefix_lens), -1, -1))
        return {name: causal if name in self.causal_layers else rows for name in group.layers}

    def _run(self, nodes: Nodes, metadata: dict[str, Any] | None, slot_mappings: dict[str, Tensor] | None) -> Tensor:
        return run_model(self.model, self.vllm_config, nodes.ids, nodes.positions, metadata, slot_mappings)

    def take_paths(self, step: Step, paths: AcceptedPaths) -> None:
        super().take_paths(step, paths)
        rows = paths.source.flatten()
        self.path_states[: len(rows)] = torch.cat([states[rows] for states in step.auxiliary()], dim=-1)

    def keep_paths(self, requests: int) -> None:
        paths, written = self.paths.part(requests), self.roots.written[:requests, None]
        slots = [
            group.kv_slots(paths.slots, written & paths.counts, self.max_model_len) for _, group in self.groups_by_layer
        ]
        positions = paths.slots.clamp(max=self.max_model_len - 1).flatten()
        self._write_kv(self.path_states[: len(positions)], positions, slots)

    def keep_rows(self, step: Step) -> None:
        count = step.batch.num_tokens
        states = torch.cat([states[:count] for states in step.auxiliary()], dim=-1)
        if step.accepted is not None:
            step.accepted.move(states)  # a copy, which is ours
        slots = [step.slot_mappings[name][:count] for name, _ in self.groups_by_layer]
        self._write_kv(states, step.batch.positions[:count], slots)

    def _write_kv(self, states: Tensor, positions: Tensor, slots: list[Tensor] | None) -> None:
        """Make keys and values of the target's ``states`` ``[T, states d]`` at ``positions`` ``[T]``, and write them to
        the KV ``slots`` ``[T]`` of each layer, if there are caches."""
        features = self.model.combine_hidden_states(states)
        self.model.precompute_and_store_context_kv(features, positions, slots)

    def rehearse_rows(self, step: Step) -> None:
        states = self.path_states.new_zeros(step.batch.num_tokens, self.path_states.shape[1])
        self._write_kv(states, torch.zeros(len(states), dtype=torch.int64, device=self.device), None)


@replaces(
    "vllm.model_executor.models.qwen3_dflash2.DFlashGroupedConv.block_size",
    name="blocks that are convolved",
    why="vLLM counts a row for each token that is verified at once, and a tree has more than a block has rows",
    how="set to the rows of a block",
    upstream="none needed",
    until="vLLM's drafters draft trees",
    kind="set",
)
def convolve_blocks(drafter: nn.Module, rows: int) -> None:
    """Have the convolutions of DFlash2's drafters know blocks of so many ``rows``."""
    for module in drafter.modules():
        if isinstance(module, DFlashGroupedConv):
            module.block_size = rows


def dflash(vllm_config: VllmConfig, device: torch.device) -> BlockSpeculator:
    """The speculator of DFlash drafters, of both kinds."""
    drafter = vllm_config.speculative_config.draft_model_config.hf_config
    make_tree = of_selector if "DFlash2DraftModel" in drafter.architectures else of_marginals
    return BlockSpeculator(vllm_config, device, load_dflash_model, make_tree)


def dspark(vllm_config: VllmConfig, device: torch.device) -> BlockSpeculator:
    """The speculator of DSpark drafters."""
    return BlockSpeculator(vllm_config, device, load_dspark_model, of_markov_head)
