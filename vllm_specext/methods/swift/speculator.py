"""SWIFT on vLLM's V2 runner.

A draft is a chain that the target writes with some of its sub-layers left out, over its own cache: keys and values of
drafted tokens go to the KV slots from the last sampled token on, which the next verification overwrites in all layers.
Around the chain hang the alternatives of the levels at which the drafter was unsure (``draft_tree.py``). Drafting ends
when no request's chain goes on, which the host has to ask after every level: a level costs half a pass of the target,
and one that nobody needs would cost more than the question.

After the drafts of a step one candidate set is evaluated, on the last tokens of one request: all but the newest of them
once more, with the candidate, in one pass (``window.py``).
Shapes: ``R`` requests, ``D`` levels.
"""

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.distributed import get_tp_group

from vllm_specext.engine.drafting.cache_groups import cache_groups
from vllm_specext.engine.drafting.fused_kernels import fused_kernels
from vllm_specext.engine.drafting.graphs import Graphs, draft_graphs
from vllm_specext.engine.drafting.node_passes import NodePasses, Nodes
from vllm_specext.engine.drafting.recorded_passes import RecordedPasses
from vllm_specext.engine.drafting.roots import Roots
from vllm_specext.engine.drafting.run_model import run_model
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.engine.drafting.tree_draft import hand_over
from vllm_specext.engine.graph_sizes import few_sizes
from vllm_specext.kernels.best_tokens import best_tokens
from vllm_specext.methods.swift.chains import Chains, of_chain
from vllm_specext.methods.swift.draft_tree import draft_tree, goes_on
from vllm_specext.methods.swift.drafter import SelfDrafter
from vllm_specext.methods.swift.learning import HostStats, Learner
from vllm_specext.methods.swift.metrics import SearchStats
from vllm_specext.methods.swift.prepare import describe
from vllm_specext.methods.swift.search.agreement import Agreement
from vllm_specext.methods.swift.search.keeping import SetRecorder
from vllm_specext.methods.swift.search.search import Search, SearchOptions
from vllm_specext.methods.swift.search.skip_set import SkipSet, num_skipped
from vllm_specext.methods.swift.search.stored import read_found
from vllm_specext.methods.swift.search.suggestion import BayesianSuggester
from vllm_specext.methods.swift.search.window import Window
from vllm_specext.options.swift import SwiftOptions
from vllm_specext.tree.swift_sizes import NUM_CANDIDATES

IDLE = 128
"""While nothing is drafted, the search takes a step in so many of the target's: it costs most of a pass."""

LEVEL, WINDOW = "level", "window"
"""The passes that are captured: one that drafts a level, and the one that evaluates a set."""


class SwiftSpeculator(StepSpeculator):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        options = vllm_config.speculative_config.options
        assert isinstance(options, SwiftOptions)
        self.options = options
        self.root_slots = options.root_slots
        self.window = Window(options.swift_context_window, device)
        requests, levels = self.max_num_reqs, vllm_config.speculative_config.tree.depth
        self.levels = levels
        self.roots = Roots.buffers(requests, device)
        self.chains = Chains.buffers(requests, levels, device)
        self.passes: NodePasses[Tensor] = NodePasses(self._run, self.max_model_len)
        self.idle_steps = 0
        """Steps since the last that verified a draft."""

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
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
        searching = Search(start, search, self.agreement.on_suggestions_of(suggester))
        self.stats = SearchStats(searching)
        parallel, save = self.vllm_config.parallel_config, self.options.swift_save
        recorder: SetRecorder | None = None
        if parallel.rank == 0:
            path = None if save is None or parallel.data_parallel_index else Path(save)
            recorder = SetRecorder(searching, search, describe(self.vllm_config.model_config), path)
            weakref.finalize(self, recorder.save)
        drafted = torch.zeros(self.max_num_reqs, self.levels, dtype=torch.int64, device=self.device)
        self.learner = Learner(searching, recorder, self.window, self._matchness, drafted, self.max_model_len)
        self.target_names = set(target_attn_layer_names)
        return SelfDrafter(target_model, start)

    def set_attn(self, *args: Any) -> None:
        super().set_attn(*args)
        self.passes.groups = cache_groups(self.kv_cache_config, self.block_tables, self.target_names)

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        sizes = few_sizes(self.vllm_config)
        self.draft_graphs = draft_graphs(self.vllm_config, self.device, cudagraph_mode, sizes)
        if isinstance(self.draft_graphs, RecordedPasses):
            self.capture()

    def capture(self) -> None:
        """All sub-layers one by one, since the search changes the set; how many passes there are, the host decides."""
        graphs = self.draft_graphs
        assert graphs is not None
        if not graphs.needs_capture():
            return
        self._mask(0, graphs.sizes[-1])
        longest = self.max_model_len
        passes: dict[tuple[int, Hashable], Any] = {
            (size, LEVEL): partial(self._in_pieces, graphs, partial(self._draft_level, size, longest))
            for size in graphs.sizes[::-1]
        }
        passes[graphs.sizes[0], WINDOW] = partial(self._in_pieces, graphs, partial(self._matches, longest))
        graphs.capture_passes(passes)

    def _in_pieces(self, graphs: Graphs, run: Callable[[], Any]) -> Any:
        with fused_kernels(self.model), self.model.in_pieces(graphs.cut):
            return run()

    def draft(self, step: Step) -> Drafts:
        requests = step.requests
        if step.skips_attention or not step.attn_metadata or self.steps is None:
            return Drafts(self.draft_tokens[:requests])
        size = self._graph_for(requests)
        self.chains.ids[:requests] = newest = step.newest_tokens()
        self.roots.take(step.lengths() + self.root_slots, written=not step.dummy)
        if step.length == 0:
            nothing = newest.new_zeros(requests, 2)
            self.idle_steps = 0 if step.batch.num_draft_tokens_per_req is not None else self.idle_steps + 1
            if not step.dummy and self.idle_steps % IDLE == 0:
                self._learn(step, nothing, nothing[:, :0])
            return Drafts(nothing[:, :0])
        tokens, log_probs = self._draft_chains(step, size)
        tree = draft_tree(
            tokens,
            log_probs,
            sampled=step.temperature[step.batch.idx_mapping] > 0,
            confidence=self.options.swift_confidence,
            nodes=step.length,
            max_depth=self.levels,
        )
        if step.dummy:
            return Drafts(tree.tokens)
        draft = hand_over(of_chain(tree, tokens, self.levels), step.batch, self.model_state)
        assert draft.num_nodes is not None
        assert isinstance(draft.chain_lengths, Tensor)
        sizes = torch.stack((draft.num_nodes, draft.chain_lengths[:, 0]), dim=1)
        return Drafts(draft.tokens, self._learn(step, sizes, tokens[:, :, 0]).nodes)

    def _graph_for(self, requests: int) -> int | None:
        """The number of requests of the graph that drafts levels for so many, if there is one. What the buffers hold
        may be lost."""
        if self.draft_graphs is None:
            return None
        self.draft_graphs.prepare(requests, LEVEL, self._mask)
        return self.draft_graphs.size_for(requests, LEVEL)

    def _draft_chains(self, step: Step, size: int | None) -> tuple[Tensor, Tensor]:
        """The most likely tokens of every level and their log-probabilities, ``[R, D, candidates]``, in the graph for
        ``size`` requests."""
        requests, chains, graphs = step.requests, self.chains, self.draft_graphs
        self.model.skipped = self.learner.search.active
        chains.positions[:requests] = self.roots.starts[:requests] - self.root_slots
        if size is not None:
            self._mask(requests, size)
        longest = step.longest + self.root_slots
        alive = torch.ones(requests, dtype=torch.bool, device=self.device)
        for level in range(min(step.length, self.levels)):
            if graphs is None or size is None:
                tokens, log_probs = self._draft_level(requests, longest + level)
            else:
                tokens, log_probs = graphs.replay(size, LEVEL, without=self.model.skipped.sub_layers)
            chains.tokens[:requests, level] = tokens[:requests]
            chains.log_probs[:requests, level] = log_probs[:requests]
            alive = alive & goes_on(log_probs[:requests, 0], self.options.swift_confidence)
            if not self.agreement.on(alive.any()):
                break
        return chains.tokens[:requests, : level + 1], chains.log_probs[:requests, : level + 1]

    def _draft_level(self, requests: int, longest: int) -> tuple[Tensor, Tensor]:
        """The most likely tokens after those in the buffers, and their log-probabilities, ``[R, candidates]``; the best
        of them is the next one there."""
        ids, positions = self.chains.ids[:requests], self.chains.positions[:requests]
        nodes = Nodes(
            ids=ids[:, None],
            positions=positions[:, None],
            slots=positions[:, None],
            written=self.roots.written[:requests, None],
            prefix_lens=positions,
            visible=self.roots.itself.expand(requests, 1, 1),
        )
        features = self.passes(nodes, 1, longest)
        tokens, log_probs = best_tokens(
            self.model.compute_logits(features), NUM_CANDIDATES, self.roots.sharpness[:requests]
        )
        ids.copy_(tokens[:, 0])
        positions += 1
        return tokens, log_probs

    def _run(self, nodes: Nodes, metadata: dict[str, Any] | None, slot_mappings: dict[str, Tensor] | None) -> Tensor:
        return run_model(self.model, self.vllm_config, nodes.ids, nodes.positions, metadata, slot_mappings)

    def _mask(self, first: int, end: int) -> None:
        """Make requests ``first`` to ``end`` in the buffers padding: they write no keys and values, and nothing reads
        what they draft."""
        self.roots.mask(first, end, self.root_slots)
        self.chains.mask(first, end)

    def _learn(self, step: Step, sizes: Tensor, chains: Tensor) -> HostStats:
        """Learn from the step, after which ``chains`` ``[R, D]`` were drafted, with nodes and levels ``sizes``
        ``[R, 2]``."""
        roots, states = self.roots.starts[: step.requests] - self.root_slots, self.req_states
        stats = self.learner.to_host(step, sizes, roots, states.all_token_ids.gpu)
        self.learner.learn(step, stats, chains, sizes[:, 1], states)
        return stats

    def _matchness(self, skipped: SkipSet, first: int) -> float:
        """The share of the window's tokens, from position ``first`` on, that follow from the token before."""
        self.model.skipped = skipped
        graphs, size = self.draft_graphs, None
        if graphs is not None:
            graphs.prepare(1, WINDOW)
            size = graphs.size_for(1, WINDOW)
        if graphs is not None and size is not None:
            matches = graphs.replay(size, WINDOW, without=skipped.sub_layers)
        else:
            matches = self._matches(first + self.window.nodes)
        return self.agreement.on(matches)

    def _matches(self, longest: int) -> Tensor:
        nodes = Nodes(**self.window.rows(), written=self.roots.written[:1, None])
        return self.window.matches(self.model.compute_logits(self.passes(nodes, self.window.nodes, longest)))
