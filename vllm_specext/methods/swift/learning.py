"""What SWIFT's search learns from a step: how the drafts before did and, where a candidate set waits, how it does.

Shapes: ``R`` requests, ``D`` levels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vllm_specext.engine.drafting.step import Step
from vllm_specext.methods.swift.draft_tree import right_tokens
from vllm_specext.methods.swift.search.acceptance import DraftOutcome
from vllm_specext.methods.swift.search.keeping import SetRecorder
from vllm_specext.methods.swift.search.search import ProposedSet, Search
from vllm_specext.methods.swift.search.skip_set import SkipSet
from vllm_specext.methods.swift.search.window import Window


@dataclass(frozen=True)
class HostStats:
    """What the host has to know of a step."""

    nodes: np.ndarray
    """``[R]``, of the drafts made just now."""
    roots: np.ndarray
    """``[R]``: positions of the last sampled tokens."""
    verified: np.ndarray
    """``[R, 4]``: what the drafts before were worth, in ``DraftOutcome``'s order."""


class Learner:
    """Takes the ``search`` a step further with every step of the target's."""

    def __init__(
        self,
        search: Search,
        recorder: SetRecorder | None,
        window: Window,
        matchness: Callable[[SkipSet, int], float],
        chains: Tensor,
        max_model_len: int,
    ) -> None:
        """``recorder``: whom to tell of every step. ``matchness``: the share of the ``window``'s tokens, from a
        position on, that a pass with a set finds. ``chains``: a buffer for what was drafted last by request slot,
        ``[S, D]`` int64."""
        self.search, self.matchness = search, matchness
        self._recorder, self._window, self._max_model_len = recorder, window, max_model_len
        self._chains, self._levels = chains, chains.new_zeros(len(chains))

    def to_host(self, step: Step, sizes: Tensor, roots: Tensor, text: Tensor) -> HostStats:
        """In one copy, given nodes and levels of the drafts, ``sizes`` ``[R, 2]``, the positions of their ``roots``
        ``[R]`` and the tokens of all request slots, ``text`` ``[S, positions]``."""
        found = sizes[:, :1], roots[:, None], self._verified(step, roots, text)
        copied = torch.cat(found, dim=1).cpu().numpy()
        return HostStats(nodes=copied[:, 0], roots=copied[:, 1], verified=copied[:, 2:])

    def learn(self, step: Step, stats: HostStats, chains: Tensor, levels: Tensor, states: Any) -> None:
        """Note how the last drafts did, and take a step of the search; ``chains`` ``[R, D]``, of which the first
        ``levels`` ``[R]`` count, were drafted just now. ``states``: vLLM's of all requests."""
        slots, drafts = step.batch.idx_mapping, step.batch.num_draft_tokens_per_req
        if drafts is not None:
            for worth in stats.verified[np.flatnonzero(drafts)].tolist():
                self.search.note(DraftOutcome(*worth))
        self._chains[slots, : chains.shape[1]] = chains
        self._levels[slots] = levels
        proposed = self.search.propose()
        if proposed is not None:
            self._evaluate(step, int(stats.roots[0]), proposed, states)
        if self._recorder is not None:
            self._recorder.record()

    def _verified(self, step: Step, roots: Tensor, text: Tensor) -> Tensor:
        """What each request's last draft was worth, ``[R, 4]`` in ``DraftOutcome``'s order."""
        slots, chains = step.batch.idx_mapping, self._chains[step.batch.idx_mapping]
        sampled, levels = step.num_sampled[: step.requests, None], self._levels[slots][:, None]
        place = torch.arange(chains.shape[1], device=chains.device)
        # The newest tokens of the text, from the first one that this step decided.
        where = (roots[:, None] - sampled + 1 + place).clamp(min=0, max=self._max_model_len - 1)
        known = (place < levels) & (place < sampled)
        right, reached = right_tokens(chains, text[slots[:, None], where], known=known)
        return torch.cat((sampled - 1, levels, right[:, None], reached[:, None]), dim=1)

    def _evaluate(self, step: Step, root: int, proposed: ProposedSet, states: Any) -> None:
        """One step of the search, if the first request, whose last token is at position ``root``, has a window of its
        own text."""
        width, slot = self._window.width, step.batch.idx_mapping
        first = root - width
        prompt = int(states.prompt_len.np[step.batch.idx_mapping_np[0]])
        if first < prompt or root + width + 1 >= self._max_model_len:
            return
        self._window.take(states.all_token_ids.gpu[slot[0], first : root + 1], first)
        score = self.matchness(proposed.skipped, first)
        incumbent = None
        if self.search.needs_incumbent(proposed, score):
            incumbent = self.matchness(self.search.active, first)
        self.search.settle(proposed, score, incumbent)
