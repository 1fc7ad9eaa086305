"""PARD's drafters (arXiv 2504.18583) on vLLM's V2 runner, drafting trees.

They are small language models, trained to give all positions of a draft in one pass, by rows with mask tokens after the
last sampled token (``engine/drafting/mask_rows.py``). Where every request of the step verified a draft, the accepted
path is read in the same pass. Being language models, they can also read the tree that they gave, as text, and say what
follows each of its nodes: a further pass, of which a better tree is made (``tree/informed.py``).
Shapes: ``R`` requests, ``W`` rows of an accepted path and the root, ``M`` rows with mask tokens (positions - 1), ``P``
nodes of a tree that is read.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id

from vllm_specext.engine.drafting.marginals import Best, best_of, grown_of
from vllm_specext.engine.drafting.mask_rows import MaskRows
from vllm_specext.engine.drafting.node_passes import Nodes
from vllm_specext.engine.drafting.request_parts import request_parts
from vllm_specext.engine.drafting.several_depths import Grown, Growth
from vllm_specext.engine.drafting.tree_draft import TreeDraft
from vllm_specext.methods.language_model.speculator import LanguageModelSpeculator
from vllm_specext.tree.informed import informed_tree
from vllm_specext.tree.marginals import best_tree, most_nodes
from vllm_specext.tree.topology import Topology


class PardSpeculator(LanguageModelSpeculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        token = get_parallel_drafting_token_id(self.draft_model_config.hf_config)
        self.mask_rows = MaskRows.of(token, self.paths.width + self.sizes.largest.depth, device)
        passes: int = vllm_config.speculative_config.options.passes
        self.positions = self.sizes.largest.depth - passes + 1
        """Levels of a tree that the first pass gives; every further one adds a level."""

    def grow(self, growth: Growth) -> Grown:
        shape = growth.shape
        positions = shape.depth if shape.top_k == 1 else min(shape.depth, self.positions)
        best = self._best_of(self._read(growth, positions - 1))
        if positions == shape.depth:
            return grown_of(best, shape)
        return self._grow_informed(growth, best, positions)

    def _read(self, growth: Growth, masks: int) -> Tensor:
        """Features of all positions, ``[R, 1 + M, d]``."""
        if growth.reads_paths and growth.requests * (self.paths.width + masks) <= self.max_num_tokens:
            return self._after_paths(growth, masks)
        if growth.reads_paths:
            self._read_paths(growth.requests, growth.longest)
        return self._after_text(growth, masks)

    def _after_paths(self, growth: Growth, masks: int) -> Tensor:
        """With the accepted paths read in the same pass."""
        paths = self.paths.part(growth.requests)
        nodes = self.mask_rows.after_paths(paths, self.roots.written[: growth.requests], masks)
        predict, _ = self.passes(nodes, self.paths.width + masks, growth.longest + self.root_slots + masks)
        return predict[self.mask_rows.drafting(paths, masks)]

    def _after_text(self, growth: Growth, masks: int) -> Tensor:
        """From the roots on."""

        def rows(part: slice) -> Nodes:
            starts = self.roots.starts[part] - self.root_slots
            return self.mask_rows.after(self.root_ids[part, None], starts, self.roots.written[part], masks)

        return self._pass(growth, 1 + masks, masks, rows)

    def _pass(self, growth: Growth, count: int, last: int, rows: Callable[[slice], Nodes]) -> Tensor:
        """Features of ``count`` rows of each request, ``[R, count, d]``, of as many requests at a time as a pass holds.
        ``last``: KV slots after the root's that they take."""
        passed = []
        for part in request_parts(growth.requests, count, self.max_num_tokens):
            predict, _ = self.passes(rows(part), 1 + last, growth.longest + self.root_slots + last, part.start)
            passed.append(predict.view(part.stop - part.start, count, -1))
        return torch.cat(passed)

    def _grow_informed(self, growth: Growth, best: Best, positions: int) -> Grown:
        """A tree that is read until it is as deep as the shape, from the ``best`` of so many ``positions``, and those
        before it where trees may end so."""
        shape, (tokens, log_probs) = growth.shape, best
        root, k = (tokens[:, :1], log_probs[:, :1]), tokens.shape[2]
        chain = partial(_first_of_each, tokens), min(positions, shape.nodes)
        read, topology, expected = best_tree(tokens, log_probs, min(shape.nodes, most_nodes(positions, k)))
        grown = {positions: TreeDraft(read, topology, *chain, expected=expected)}
        for levels in range(positions + 1, shape.depth + 1):
            growth.cut(("after", levels - 1))
            after = self._best_of(self._after_nodes(growth, read, topology))
            follows, how_likely = (torch.cat(both, dim=1) for both in zip(root, after, strict=True))
            nodes = min(shape.nodes, (read.shape[1] + 1) * k)
            read, topology, expected = informed_tree(read, topology, follows, how_likely, nodes, levels)
            grown[levels] = TreeDraft(read, topology, *chain, expected=expected)
        return {depth: grown[depth] for depth in growth.depths}

    def _after_nodes(self, growth: Growth, read: Tensor, topology: Topology) -> Tensor:
        """Features of the nodes, ``[R, P, d]``. The root has been read before, as text."""
        count = read.shape[1]
        place = torch.arange(1, count + 1, device=read.device)

        def rows(part: slice) -> Nodes:
            root = self.roots.starts[part] - self.root_slots
            return Nodes(
                ids=read[part],
                positions=root[:, None] + topology.depths[part, 1:],
                slots=root[:, None] + place,
                written=self.roots.written[part, None],
                prefix_lens=root,
                visible=topology.ancestors[part, 1:],
            )

        return self._pass(growth, count, count, rows)

    def _best_of(self, features: Tensor) -> Best:
        return best_of(features, self.sizes.largest.top_k, self.roots.sharpness[: len(features)], self._best)


def _first_of_each(tokens: Tensor) -> Tensor:
    """``[R, positions, k]``, best first -> ``[R, positions]``"""
    return tokens[:, :, 0]
