"""Trees that clients have drafted, and the rows that their drafters want in return.

A request brings a tree under the last token of its prompt. The step that ends the prompt decides the next token; what
the tree has under it is the draft of the next step, and nothing is drafted after that. After every step that decides
tokens the rows of the text are read from the drafter's cache, and kept until they are taken. Each request comes once in
a client's round trip, and so they are gone through one after the other, and the step waits for the copies.
Shapes: ``R`` requests of a step, ``n`` tokens to draft, ``T`` tokens of a text, ``H`` heads of size ``D``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_specext.engine.client_trees import brought_by
from vllm_specext.engine.clients.kept_rows import KeptRows
from vllm_specext.engine.drafting.new_tokens import new_tokens
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.engine.requests import Drafting
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.rows import RowFormat
from vllm_specext.tree.topology import Topology

NOTHING = Drafted.chain([])

ROWS_AT_ONCE = 1024
"""That are read and packed: in float32 and several copies, whose memory vLLM has not counted."""


@dataclass
class Asked:
    ticket: str
    form: RowFormat
    rows: int
    """The first token whose row is not kept yet."""
    tree: Drafted | None
    """Under the last token that is known; ``None`` when it has been drafted."""
    known: int
    """Tokens of the text that lead to the tree's root."""


class ClientDrafts:
    """The requests of clients that draft, by request slot."""

    def __init__(
        self, heads: int, head_size: int, most: int, read: Callable[[int, Tensor], tuple[Tensor, Tensor]]
    ) -> None:
        """``heads`` ``H`` and ``head_size`` ``D`` of rows; ``most``: drafted tokens that a step can accept. ``read``
        gives keys and values ``[T, H, D]`` of a request, by its place in the step, and its tokens ``[T]``."""
        self._heads, self._head_size, self._most, self._read = heads, head_size, most, read
        self._asked: dict[int, Asked] = {}
        self.kept = KeptRows()
        self._others: int | None = None

    def add(self, slot: int, request: Any) -> None:
        """Begin with a request, or again with one that was preempted and comes with the tokens that it has."""
        self._asked.pop(slot, None)
        brought = brought_by(request.sampling_params)
        if brought is None:
            return
        tree = brought.tree
        for token in request.prefill_token_ids[request.prompt_len :]:
            tree = tree.under(token)
        form = RowFormat(self._heads, self._head_size, brought.kind)
        self._asked[slot] = Asked(brought.ticket, form, brought.first_row, tree, len(request.prefill_token_ids))
        self.kept.begin(brought.ticket)

    def begin_step(self, others: int | None) -> None:
        """``others``: tokens to draft after the step for requests that brought no tree; ``None`` for as many as for all
        (``scheduler/client_room.py``)."""
        self._others = others

    def for_others(self, step: Step) -> Step:
        """The same step with the length of the server's own drafts, which is 0 where all of its requests are
        clients'."""
        if self._asked.keys() >= set(step.batch.idx_mapping_np.tolist()):
            return replace(step, length=0)
        return step if self._others is None else replace(step, length=min(self._others, step.length))

    def after(self, drafts: Drafts, step: Step, speculator: Any) -> Drafts:
        """The ``drafts`` of a ``speculator``, which has taken in the step, with those of clients in their place. Their
        rows are kept."""
        slots = step.batch.idx_mapping_np
        places = [place for place, slot in enumerate(slots.tolist()) if slot in self._asked]
        if not places:
            return drafts
        ids, drafting = speculator.req_states.all_token_ids.gpu, speculator.model_state.drafting
        new = new_tokens(step, ids, self._most + 1)
        found = dict.fromkeys(places, NOTHING)
        for place in set(new.decided.tolist()) & found.keys():
            slot, length = int(slots[place]), int(new.lengths[place])
            asked = self._asked[slot]
            self._keep_rows(asked, place, length - 1)
            if asked.tree is not None:
                found[place] = _drafted(asked, new.after(place, asked.known), drafting[slot], step.length)
        if not step.length:
            return drafts
        assert speculator.steps is not None
        return with_trees(drafts, found, step, speculator.steps.trees)

    def _keep_rows(self, asked: Asked, place: int, end: int) -> None:
        """Keep the rows of a text up to token ``end``, which the cache does not have."""
        while asked.rows < end:
            part = torch.arange(asked.rows, min(asked.rows + ROWS_AT_ONCE, end))
            self.kept.add(asked.ticket, asked.form.pack(*self._read(place, part)).cpu().numpy().tobytes())
            asked.rows += len(part)


def _drafted(asked: Asked, tokens: list[int], drafting: int, most: int) -> Drafted:
    """What is to be verified after ``tokens``, the newest of a text: once, and no more than ``most``."""
    tree, asked.tree = asked.tree, None
    assert tree is not None
    for token in tokens:
        tree = tree.under(token)
    if drafting == Drafting.OFF:
        return NOTHING
    return (tree if drafting == Drafting.TREE else tree.first_path()).first(most)


def with_trees(drafts: Drafts, found: dict[int, Drafted], step: Step, trees: TreeStates) -> Drafts:
    """The same ``drafts`` with trees ``found`` for requests, by their place in the step, also in those that the next
    step verifies."""
    device, length, places = drafts.tokens.device, step.length, list(found)
    shape = (len(found), length)
    ids, parents, depths = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.ones(shape, np.int64)
    for row, tree in enumerate(found.values()):
        count = len(tree.ids)
        ids[row, :count], parents[row, :count], depths[row, :count] = tree.ids, tree.parents, tree.depths()
    counts = np.array([len(tree.ids) for tree in found.values()])
    levels = np.array([tree.levels for tree in found.values()])
    # Until it is made padding, what follows a tree's nodes passes for children of the root.
    from_root = [async_tensor_h2d(np.pad(part, ((0, 0), (1, 0))), device=device) for part in (parents, depths)]
    topology = Topology.of(from_root[0], from_root[1], max(1, int(levels.max())))
    topology = topology.padded_after(async_tensor_h2d(counts[:, None], device=device))
    slots = step.batch.idx_mapping_np[places]
    is_chain = np.array([tree.is_chain for tree in found.values()])
    trees.write(async_tensor_h2d(slots, device=device), slots, topology, is_chain, levels > trees.shape.depth)
    tokens = torch.zeros(step.requests, length, dtype=torch.int64, device=device)
    count = min(drafts.tokens.shape[1], length)
    tokens[:, :count] = drafts.tokens[:, :count]
    tokens[async_tensor_h2d(np.array(places), device=device)] = async_tensor_h2d(ids, device=device)
    lengths = np.full(step.requests, count) if drafts.lengths is None else drafts.lengths.copy()
    lengths[places] = counts
    return Drafts(tokens, lengths)
