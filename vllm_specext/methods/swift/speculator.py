"""SWIFT on vLLM's V2 runner.

A draft is a chain that the target writes with some of its sub-layers left out, over its own cache: keys and values of
drafted tokens go to the slots from the last sampled token on, which the next verification overwrites in all layers.
Around the chain hang the alternatives of the levels at which the drafter was unsure (``candidates.py``). Drafting ends
when no request's chain goes on, which the host has to ask after every level: a level costs half a pass of the target,
and one that nobody needs would cost more than the question.

After the drafts of a step one candidate set is evaluated, on the last tokens of one request: all but the newest of them
once more, with the candidate, in one pass (``window.py``).
Shapes: ``R`` requests, ``D`` levels.
"""

import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.distributed import get_tp_group
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.fused_kernels import fused_kernels
from vllm_specext.engine.pass_graphs import PassGraphs
from vllm_specext.engine.requests import Drafting
from vllm_specext.engine.tree_growth import TreeGrower
from vllm_specext.methods.swift.acceptance import Verification
from vllm_specext.methods.swift.agreement import Agreement
from vllm_specext.methods.swift.candidates import NUM_CANDIDATES, draft_tree, goes_on, right_tokens
from vllm_specext.methods.swift.drafter import SelfDrafter
from vllm_specext.methods.swift.keeping import Keeper
from vllm_specext.methods.swift.layers import SkipSet, num_skipped
from vllm_specext.methods.swift.metrics import News
from vllm_specext.methods.swift.prepare import describe
from vllm_specext.methods.swift.search import Candidate, Search, SearchOptions
from vllm_specext.methods.swift.stored import read_found
from vllm_specext.methods.swift.suggestion import BayesianSuggester
from vllm_specext.methods.swift.window import Window
from vllm_specext.options import SwiftOptions
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.expansion import best_tokens
from vllm_specext.tree.topology import Topology, pack

WINDOW = "window"
"""The pass that evaluates a set, among the graphs."""


@dataclass(frozen=True)
class Told:
    """What the host has to know of a step."""

    nodes: np.ndarray
    """``[R]``, of the drafts made just now."""
    roots: np.ndarray
    """``[R]``: positions of the last sampled tokens."""
    verified: np.ndarray
    """``[R, 4]``: what the drafts before were worth, in ``Verification``'s order."""


class SwiftSpeculator(TreeGrower):
    is_recurrent = False

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        options = vllm_config.speculative_config.options
        assert isinstance(options, SwiftOptions)
        self.options = options
        self.window = Window(options.swift_context_window, device)
        self.own_bit = pack(torch.ones(1, 1, dtype=torch.bool, device=device))
        self.pass_graphs: PassGraphs[Any] | None = None

    def make_buffers(self, shape: TreeShape) -> None:
        super().make_buffers(shape)
        slots, levels = self.max_num_reqs, shape.levels
        self.next_ids = torch.zeros(slots, dtype=torch.int64, device=self.device)
        self.next_positions = torch.zeros(slots, dtype=torch.int64, device=self.device)
        candidates = (slots, levels, NUM_CANDIDATES)
        self.level_tokens = torch.zeros(candidates, dtype=torch.int64, device=self.device)
        self.level_log_probs = torch.zeros(candidates, dtype=torch.float32, device=self.device)
        self.chains = torch.zeros(slots, levels, dtype=torch.int64, device=self.device)
        self.levels_drafted = torch.zeros(slots, dtype=torch.int64, device=self.device)

    def stop_writing(self, first: int, end: int) -> None:
        super().stop_writing(first, end)
        self.next_ids[first:end] = 0
        self.next_positions[first:end] = 0

    def make_drafter(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        layers = len(target_model.model.layers)
        given = self.options.swift_layers
        start = SkipSet.uniform(layers) if given is None else read_found(Path(given)).skipped
        ratio = self.options.swift_skip_ratio
        search = SearchOptions(
            swift_skip_ratio=ratio,
            swift_max_score=self.options.swift_max_score,
            swift_max_steps=self.options.swift_max_steps if given is None else 0,
            swift_bayes_interval=self.options.swift_bayes_interval,
        )
        group = get_tp_group()
        self.agreement = Agreement(group)
        suggester = BayesianSuggester(layers, num_skipped(layers, ratio)) if group.is_first_rank else None
        if suggester is not None and search.swift_max_steps and search.swift_bayes_interval:
            suggester.start()
        self.search = Search(start, search, self.agreement.on_suggestions_of(suggester))
        self.news = News(self.search)
        parallel, save = self.vllm_config.parallel_config, self.options.swift_save
        self.keeper: Keeper | None = None
        if parallel.rank == 0:
            path = None if save is None or parallel.data_parallel_index else Path(save)
            self.keeper = Keeper(self.search, search, describe(self.vllm_config.model_config), path)
            weakref.finalize(self, self.keeper.save)
        self.target_names = set(target_attn_layer_names)
        return SelfDrafter(target_model, start)

    def row_layer_names(self) -> set[str]:
        return self.target_names

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        self.pass_graphs = PassGraphs(self.vllm_config, self.device, cudagraph_mode)

    def capture(self) -> None:
        """All sub-layers one by one, since the search changes the set; how many passes there are, the host decides."""
        graphs = self.pass_graphs
        assert graphs is not None
        if not graphs.needs_capture():
            return
        self.stop_writing(0, graphs.sizes[-1])
        longest = self.max_model_len
        passes: dict[Hashable, Any] = {size: partial(self._draft_level, size, longest) for size in graphs.sizes[::-1]}
        passes[WINDOW] = partial(self._matches, longest)
        with fused_kernels(self.model), self.model.in_pieces(graphs.cut):
            graphs.capture_passes(passes)

    @torch.inference_mode()
    def propose(
        self,
        input_batch: InputBatch,
        attn_metadata: dict[str, Any],
        slot_mappings: dict[str, Tensor],
        last_hidden_states: Tensor,
        aux_hidden_states: list[Tensor] | None,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Tensor,
        temperature: Tensor,
        *args: Any,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        nodes = self.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
        batch, requests = input_batch, input_batch.num_reqs
        drafted = self.draft_tokens[:requests]
        self.draft_lengths = None
        if skip_attn_for_dummy_run or not attn_metadata or self.trees is None:
            return drafted
        slots = batch.idx_mapping
        sampled, prompt = last_sampled.view(-1)[slots], next_prefill_tokens.view(-1)[slots]
        self.next_ids[:requests] = torch.where(num_sampled > 0, sampled, prompt.to(sampled.dtype))
        self.tree_starts[:requests] = batch.seq_lens[:requests] - num_rejected[:requests] + self.root_slots
        self.writes[:requests] = not dummy_run
        if nodes == 0:
            if not dummy_run:
                nothing = sampled.new_zeros(requests, 2)
                self._learn(batch, self._told(batch, num_sampled, nothing), nothing[:, :0], nothing[:, 1])
            return drafted
        tokens, log_probs = self._draft_chains(batch, nodes)
        tree = draft_tree(
            tokens,
            log_probs,
            sampled=temperature[slots] > 0,
            confidence=self.options.swift_confidence,
            nodes=nodes,
            max_levels=self.trees.shape.levels,
        )
        drafted[:, :nodes] = tree.tokens
        if dummy_run:
            return drafted
        sizes = self._keep(batch, drafted, nodes, tokens, tree.topology, tree.num_nodes)
        told = self._told(batch, num_sampled, sizes)
        self.draft_lengths = told.nodes
        self._learn(batch, told, tokens[:, :, 0], sizes[:, 1])
        return drafted

    def _draft_chains(self, batch: InputBatch, nodes: int) -> tuple[Tensor, Tensor]:
        """The most likely tokens of every level and their log-probabilities, ``[R, D, candidates]``."""
        assert self.trees is not None
        requests = batch.num_reqs
        self.model.skipped = self.search.active
        self.next_positions[:requests] = self.tree_starts[:requests] - self.root_slots
        graphs = self.pass_graphs
        size = None if graphs is None else graphs.size_for(requests)
        if size is not None:
            self.stop_writing(requests, size)
        longest = int(batch.seq_lens_cpu_upper_bound[:requests].max()) + self.root_slots
        alive = torch.ones(requests, dtype=torch.bool, device=self.device)
        for level in range(min(nodes, self.trees.shape.levels)):
            if graphs is None or size is None:
                tokens, log_probs = self._draft_level(requests, longest + level)
            else:
                tokens, log_probs = graphs.replay(size, without=self.model.skipped.sub_layers)
            self.level_tokens[:requests, level] = tokens[:requests]
            self.level_log_probs[:requests, level] = log_probs[:requests]
            alive = alive & goes_on(log_probs[:requests, 0], self.options.swift_confidence)
            if not self.agreement.on(alive.any()):
                break
        return self.level_tokens[:requests, : level + 1], self.level_log_probs[:requests, : level + 1]

    def _draft_level(self, requests: int, longest: int) -> tuple[Tensor, Tensor]:
        """The most likely tokens behind those in the buffers, and their log-probabilities, ``[R, candidates]``; the
        best of them is the next one there."""
        positions = self.next_positions[:requests, None]
        features, _ = self.run_rows(
            ids=self.next_ids[:requests, None],
            features=None,
            positions=positions,
            slots=positions,
            written=self.writes[:requests, None],
            prefix_lens=positions[:, 0],
            visible=self.own_bit.expand(requests, 1, 1),
            num_nodes=1,
            longest=longest,
        )
        tokens, log_probs = best_tokens(self.model.compute_logits(features), NUM_CANDIDATES)
        self.next_ids[:requests] = tokens[:, 0]
        self.next_positions[:requests] += 1
        return tokens, log_probs

    def _keep(
        self, batch: InputBatch, drafted: Tensor, nodes: int, tokens: Tensor, topology: Topology, num_nodes: Tensor
    ) -> Tensor:
        """Hand the trees to verification, chains where a request needs one; nodes and levels of each, ``[R, 2]``."""
        assert self.trees is not None
        needs_chain = self.trees.kinds[batch.idx_mapping_np] != Drafting.TREE
        levels = topology.depths.masked_fill(topology.depths > self.trees.shape.levels, 0).amax(dim=1)
        if needs_chain.any():
            chosen = torch.from_numpy(needs_chain).to(self.device, non_blocking=True)[:, None]
            chain = torch.zeros_like(drafted[:, :nodes])
            depth = min(nodes, tokens.shape[1])
            chain[:, :depth] = tokens[:, :depth, 0]
            drafted[:, :nodes] = torch.where(chosen, chain, drafted[:, :nodes])
            chains = Topology.chain(batch.num_reqs, nodes, self.device).padded_after(levels[:, None])
            topology = topology.where(chosen, chains)
            num_nodes = torch.where(chosen[:, 0], levels, num_nodes)
        self.trees.write(batch.idx_mapping, batch.idx_mapping_np, topology, needs_chain)
        return torch.stack((num_nodes, levels), dim=1)

    def _told(self, batch: InputBatch, num_sampled: Tensor, sizes: Tensor) -> Told:
        """In one copy, given ``sizes`` ``[R, 2]`` of the drafts."""
        roots = self.tree_starts[: batch.num_reqs, None] - self.root_slots
        copied = torch.cat((sizes[:, :1], roots, self._verified(batch, num_sampled)), dim=1).cpu().numpy()
        return Told(nodes=copied[:, 0], roots=copied[:, 1], verified=copied[:, 2:])

    def _learn(self, batch: InputBatch, told: Told, chains: Tensor, levels: Tensor) -> None:
        """Note how the last drafts did, and take a step of the search; ``chains`` ``[R, D]``, of which the first
        ``levels`` ``[R]`` count, were drafted just now."""
        slots = batch.idx_mapping
        drafts = batch.num_draft_tokens_per_req
        if drafts is not None:
            for worth in told.verified[np.flatnonzero(drafts)].tolist():
                self.search.note(Verification(*worth))
        self.chains[slots, : chains.shape[1]] = chains
        self.levels_drafted[slots] = levels
        candidate = self.search.propose()
        if candidate is not None:
            self._evaluate(batch, int(told.roots[0]), candidate)
        if self.keeper is not None:
            self.keeper.look()

    def _verified(self, batch: InputBatch, num_sampled: Tensor) -> Tensor:
        """What each request's last draft was worth, ``[R, 4]`` in ``Verification``'s order."""
        requests, slots = batch.num_reqs, batch.idx_mapping
        sampled, levels = num_sampled[:requests, None], self.levels_drafted[slots][:, None]
        place = torch.arange(self.chains.shape[1], device=self.device)
        # The newest tokens of the text, from the first one that this step decided.
        first = self.tree_starts[:requests, None] - self.root_slots - sampled + 1
        where = (first + place).clamp(min=0, max=self.max_model_len - 1)
        text = self.req_states.all_token_ids.gpu[slots[:, None], where]
        right, reached = right_tokens(self.chains[slots], text, known=(place < levels) & (place < sampled))
        return torch.cat((sampled - 1, levels, right[:, None], reached[:, None]), dim=1)

    def _evaluate(self, batch: InputBatch, root: int, candidate: Candidate) -> None:
        """One step of the search, if the first request, whose last token is at position ``root``, has a window of its
        own text."""
        window = self.window
        first = root - window.width
        prompt = int(self.req_states.prompt_len.np[batch.idx_mapping_np[0]])
        if first < prompt or root + window.width + 1 >= self.max_model_len:
            return
        window.take(self.req_states.all_token_ids.gpu[batch.idx_mapping[0], first : root + 1], first)
        score = self._matchness(candidate.skipped, first)
        incumbent = None
        if self.search.needs_incumbent(candidate, score):
            incumbent = self._matchness(self.search.active, first)
        self.search.settle(candidate, score, incumbent)

    def _matchness(self, skipped: SkipSet, first: int) -> float:
        """The share of the window's tokens, from position ``first`` on, that follow from the token before."""
        self.model.skipped = skipped
        if self.pass_graphs is not None and self.pass_graphs.holds(WINDOW):
            matches = self.pass_graphs.replay(WINDOW, without=skipped.sub_layers)
        else:
            matches = self._matches(first + self.window.nodes)
        return self.agreement.on(matches)

    def _matches(self, longest: int) -> Tensor:
        features, _ = self.run_rows(**self.window.rows(), written=self.writes[:1, None], longest=longest)
        return self.window.matches(self.model.compute_logits(features))
