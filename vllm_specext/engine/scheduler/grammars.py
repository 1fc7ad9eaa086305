"""What the scheduler knows of the trees that were drafted for requests with structured outputs."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.outputs import DraftTokenIds

from vllm_specext.engine.scheduler.grammar_walk import DraftedTree, GrammarWalk, reads_all_text, starts_of
from vllm_specext.engine.scheduler.told_parents import parents_in

FEW = 8
"""Nodes of trees for requests that reason, where the parser reads the whole text for each path."""


class Grammars:
    def __init__(self, manager: Any) -> None:
        """``manager``: vLLM's ``StructuredOutputManager``."""
        self._manager = manager
        self._drafted: dict[str, DraftedTree] = {}

    def take(self, drafts: DraftTokenIds, requests: Mapping[str, Any]) -> tuple[DraftTokenIds, dict[str, int]]:
        """Keep the trees of requests with structured outputs. Returns the other ``drafts``, which vLLM goes on with,
        and how many tokens were drafted for each of these requests. Of a tree whose shape is not known nothing is
        kept, and nothing accepted."""
        self._drafted.clear()  # of requests that the last step left out; nothing of what they were drafted is accepted
        parents = parents_in(drafts)
        others: list[tuple[str, list[int]]] = []
        kept: dict[str, int] = {}
        for place, (name, tokens) in enumerate(zip(drafts.req_ids, drafts.draft_token_ids, strict=True)):
            request = requests.get(name)
            if request is None or not request.use_structured_output:
                others.append((name, tokens))
                continue
            self._drafted[name] = DraftedTree([], []) if parents is None else DraftedTree(tokens, parents[place])
            kept[name] = len(tokens)
        return DraftTokenIds([name for name, _ in others], [tokens for _, tokens in others]), kept

    def forget(self, name: str) -> None:
        self._drafted.pop(name, None)

    def fill(
        self, output: GrammarOutput, scheduled: Mapping[str, list[int]], requests: Mapping[str, Any], most: int
    ) -> GrammarOutput:
        """Fill the masks of the trees that a step verifies, which vLLM took for drafts that are not known, and say how
        many nodes they hold for. ``scheduled`` has a token for each node of a request's draft; ``most``: drafted tokens
        that a request can have."""
        assert output.num_acceptable_drafts is not None
        acceptable = list(output.num_acceptable_drafts)
        names = output.structured_output_request_ids
        counts = [len(scheduled.get(name, ())) for name in names]
        for place, (name, masks) in enumerate(zip(names, _parts(output, counts, most), strict=True)):
            drafted = self._drafted.pop(name, None)
            if drafted is None or not counts[place]:
                continue
            request = requests[name]
            tree = drafted.first(counts[place] if self._asks_cheaply(request) else min(counts[place], FEW))
            children = tree.children()
            starts = starts_of(self._manager, request, tree, children)
            GrammarWalk(name, request.structured_output_request.grammar, tree, masks).fill(children, starts)
            acceptable[place] = len(tree.tokens)
        return replace(output, num_acceptable_drafts=acceptable)

    def _asks_cheaply(self, request: Any) -> bool:
        """Whether it takes little to ask where reasoning ends on every path, or it has ended."""
        if self._manager.enable_in_reasoning or request.structured_output_request.reasoning_ended:
            return True
        reasoner = self._manager._get_reasoner(request)
        return reasoner is None or not reads_all_text(reasoner)


def _parts(output: GrammarOutput, counts: list[int], most: int) -> Iterator[np.ndarray]:
    """The rows of each request. vLLM 0.32 puts them one after the other, and 0.33 gives every request as many rows."""
    masks, first = output.grammar_bitmask, 0
    are_equally_many = len(masks) == len(counts) * (1 + most)
    for count in counts:
        yield masks[first : first + 1 + count]
        first += 1 + (most if are_equally_many else count)
