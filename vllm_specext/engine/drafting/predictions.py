"""What requests predict of their answers, and what is looked up in their texts, as drafts.

A place is kept in each request's prediction or text (``tree/place.py``, ``tree/own_text.py``), on the host. After a
step the newest tokens of all texts are taken there in one copy, as the methods with a tokenizer of their own do it: the
place can only be followed with the tokens that were decided. The step waits for this copy. Without a request that has
such a place nothing is copied.
Shapes: ``R`` requests of a step, ``n`` tokens to draft.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_specext.engine.drafting.new_tokens import new_tokens
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.engine.requests import Drafting, drafting_of, prediction_of
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.options.base import Predicted
from vllm_specext.tree.lookups import Lookups
from vllm_specext.tree.own_text import OwnText
from vllm_specext.tree.place import Place
from vllm_specext.tree.topology import Topology

OFF, CHAIN = int(Drafting.OFF), int(Drafting.CHAIN)
"""Comparing an array with a member of an enumeration takes ten times as long."""


@dataclass
class Text:
    place: Place
    known: int
    """Tokens of the request that the place has followed, or that came before."""
    is_looked_up: bool = False
    """Whether the request itself predicted nothing."""
    found: "LookedUp | None" = None
    """The last that was looked up, for the step after."""

    def follow(self, tokens: list[int]) -> None:
        self.place.follow(tokens)
        self.known += len(tokens)

    def look_up(self, step: int, most: int, lookups: Lookups) -> np.ndarray:
        """The next tokens, at most ``most``, for the step with this number; none where the drafter's are expected to
        bring more, as ``lookups`` says."""
        given, evidence = self.place.draft(most), self.place.evidence
        drafts = len(given) > 0 and lookups.pay(evidence, len(given))
        self.found = LookedUp(step, evidence, given.tolist(), drafts) if len(given) else None
        return given if drafts else given[:0]

    def teach(self, lookups: Lookups, step: int, came: list[int]) -> None:
        """Have ``lookups`` learn from the tokens that the step with this number gave."""
        if self.found is None or self.found.step != step or not came:
            return
        lookups.see(self.found.evidence, self.found.tokens, came)
        if not self.found.drafted:
            lookups.see_draft(self.found.evidence, len(came) - 1)


class LookedUp(NamedTuple):
    step: int
    """The number of the step that verifies these tokens, or the drafter's draft in their place."""
    evidence: int
    """Tokens that spoke for the place."""
    tokens: list[int]
    drafted: bool


@dataclass(frozen=True)
class Chains:
    """What is predicted to come next."""

    tokens: np.ndarray
    """``[R, n]`` int64; a request's padding follows its tokens."""
    lengths: np.ndarray
    """``[R]``; 0 for a request without a prediction, or whose thread is lost."""

    @classmethod
    def of(cls, found: dict[int, np.ndarray], step: Step) -> "Chains":
        """What was ``found`` for requests, by their place in the step."""
        tokens, lengths = np.zeros((step.requests, step.length), np.int64), np.zeros(step.requests, np.int64)
        for place, given in found.items():
            tokens[place, : len(given)], lengths[place] = given, len(given)
        return cls(tokens, lengths)


class Predictions:
    """The predictions of all requests, by request slot."""

    def __init__(self, predicted: Predicted, most: int) -> None:
        """``most``: drafted tokens that a step can accept."""
        self._predicted, self._most = predicted, most
        self._texts: dict[int, Text] = {}
        self._lookups = Lookups() if predicted.prompt and predicted.has_drafter else None
        self._steps = 0

    def clear(self) -> None:
        self._texts.clear()

    def add(self, slot: int, request: Any) -> None:
        """Begin with a request, or go on with one that was preempted and comes with the tokens that it has."""
        self._texts.pop(slot, None)
        if drafting_of(request.sampling_params, custom_processors=False) is Drafting.OFF:
            return
        tokens, match = request.prefill_token_ids, self._predicted.match
        if given := prediction_of(request.sampling_params):
            place = Place(np.array(given), match)
            place.follow(tokens[request.prompt_len :])
            self._texts[slot] = Text(place, len(tokens))
        elif self._predicted.prompt:
            self._texts[slot] = Text(OwnText(np.array(tokens), match), len(tokens), is_looked_up=True)

    def before(self, drafts: Drafts, step: Step, speculator: Any) -> Drafts:
        """The ``drafts`` of a ``speculator`` for a step, before which comes what its requests predict."""
        ids, drafting = speculator.req_states.all_token_ids.gpu, speculator.model_state.drafting
        trees = None if speculator.steps is None else speculator.steps.trees
        chains = self.chains(step, ids, drafting, self._most if trees is None else trees.shape.depth)
        return drafts if chains is None else with_predicted(drafts, chains, step, trees)

    def chains(self, step: Step, ids: Tensor, drafting: np.ndarray, depth: int) -> Chains | None:
        """The chains of a step; ``None`` where no request has one. ``ids``: the texts by request slot, on the device.
        ``drafting``: what each request slot may be drafted; ``depth``: tokens of a chain for one that gets no trees."""
        self._steps += 1
        slots = step.batch.idx_mapping_np.tolist()
        if not step.length or self._texts.keys().isdisjoint(slots):
            return None
        here = {place: text for place, slot in enumerate(slots) if (text := self._texts.get(slot)) is not None}
        lengths = step.batch.seq_lens_cpu_upper_bound.tolist()
        backlog = max(lengths[place] + 1 - text.known for place, text in here.items())
        new = new_tokens(step, ids, max(self._most + 1, backlog))
        found: dict[int, np.ndarray] = {}
        for place in new.decided.tolist():
            text, allowed = here.get(place), drafting[slots[place]]
            if text is None or allowed == OFF:
                continue
            came, most = new.after(place, text.known), min(step.length, self._predicted.tokens)
            if self._lookups is None or not text.is_looked_up:
                text.follow(came)
                given = text.place.draft(most)
            else:
                text.teach(self._lookups, self._steps - 1, came)
                text.follow(came)
                given = text.look_up(self._steps, most if allowed != CHAIN else min(most, depth), self._lookups)
            if len(given):
                found[place] = given
        return Chains.of(found, step) if found else None


def with_predicted(drafts: Drafts, chains: Chains, step: Step, trees: TreeStates | None) -> Drafts:
    """The same ``drafts`` with the predicted ``chains`` in the place of those of their requests, also in the ``trees``
    that the next step verifies, if it verifies any."""
    device, predicted = drafts.tokens.device, chains.lengths > 0
    tokens = torch.zeros(step.requests, step.length, dtype=torch.int64, device=device)
    count = min(drafts.tokens.shape[1], step.length)
    tokens[:, :count] = drafts.tokens[:, :count]
    chosen = async_tensor_h2d(predicted, device=device)[:, None]
    tokens = torch.where(chosen, async_tensor_h2d(chains.tokens, device=device), tokens)
    if trees is not None:
        slots, lengths = step.batch.idx_mapping_np[predicted], chains.lengths[predicted]
        chain = Topology.chain(len(slots), step.length, device)
        padded = chain.padded_after(async_tensor_h2d(lengths, device=device)[:, None])
        trees.write(async_tensor_h2d(slots, device=device), slots, padded, True, lengths > trees.shape.depth)
    own = np.full(step.requests, step.length) if drafts.lengths is None else drafts.lengths
    return Drafts(tokens, np.where(predicted, chains.lengths, own))
