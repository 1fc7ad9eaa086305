"""What requests predict of their answers, as drafts.

A place is kept in each request's prediction (``tree/place.py``), on the host. After a step the newest tokens of all
texts are taken there in one copy, as the methods with a tokenizer of their own do it: the place can only be followed
with the tokens that were decided. The step waits for this copy. Without a request that has a prediction nothing is
copied.
Shapes: ``R`` requests of a step, ``n`` tokens to draft.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_specext.engine.drafting.new_tokens import new_tokens
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.engine.requests import Drafting, prediction_of
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.options.base import Predicted
from vllm_specext.tree.lookups import Lookups
from vllm_specext.tree.own_text import OwnText
from vllm_specext.tree.place import Place
from vllm_specext.tree.topology import Topology

OFF = int(Drafting.OFF)
"""Comparing an array with a member of an enumeration takes ten times as long."""


@dataclass
class Text:
    place: Place
    known: int
    """Tokens of the request that the place has followed, or that came before."""
    is_looked_up: bool = False
    """Whether the request itself predicted nothing."""
    found: tuple[int, list[int]] | None = None
    """What was looked up for the step that runs: the tokens that spoke for it, and the next ones."""
    has_draft: bool = False
    """Whether that step verifies the drafter's draft in its place."""

    def follow(self, tokens: list[int]) -> None:
        self.place.follow(tokens)
        self.known += len(tokens)

    def forget_draft(self) -> None:
        self.found = None

    def take(self, given: np.ndarray, lookups: Lookups) -> bool:
        """Whether the ``given`` tokens, looked up for the next step, are drafted there, as ``lookups`` says."""
        evidence = self.place.evidence
        self.found = (evidence, given.tolist()) if len(given) else None
        self.has_draft = self.found is None or not lookups.pay(evidence, len(given))
        return not self.has_draft

    def teach(self, lookups: Lookups, came: list[int]) -> None:
        """Have ``lookups`` learn from the tokens that the step gave."""
        if self.found is None or not came:
            return
        lookups.see(*self.found, came)
        if self.has_draft:
            lookups.see_draft(self.found[0], len(came) - 1)


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

    def clear(self) -> None:
        self._texts.clear()

    def add(self, slot: int, request: Any) -> None:
        """Begin with a request, or go on with one that was preempted and comes with the tokens that it has."""
        self._texts.pop(slot, None)
        tokens, match = request.prefill_token_ids, self._predicted.match
        prompt, answer = tokens[: request.prompt_len], tokens[request.prompt_len :]
        given = prediction_of(request.sampling_params)
        if given:
            place = Place(np.array(given), match)
        elif self._predicted.prompt:
            place = OwnText(np.array(prompt), match)
        else:
            return
        place.follow(answer)
        self._texts[slot] = Text(place, len(tokens), is_looked_up=not given)

    def before(self, drafts: Drafts, step: Step, speculator: Any) -> Drafts:
        """The ``drafts`` of a ``speculator`` for a step, before which comes what its requests predict."""
        ids, drafting = speculator.req_states.all_token_ids.gpu, speculator.model_state.drafting
        chains, steps = self.chains(step, ids, drafting), speculator.steps
        if chains is None:
            return drafts
        return with_predicted(drafts, chains, step, None if steps is None else steps.trees)

    def chains(self, step: Step, ids: Tensor, drafting: np.ndarray) -> Chains | None:
        """The chains of a step; ``None`` where no request has one. ``ids``: the texts by request slot, on the device.
        ``drafting``: what each request slot may be drafted."""
        slots = step.batch.idx_mapping_np.tolist()
        if not step.length or self._texts.keys().isdisjoint(slots):
            for waiting in self._texts.values():  # the next step says nothing of drafts
                waiting.forget_draft()
            return None
        new = new_tokens(step, ids, self._most + 1)
        most = min(step.length, self._predicted.tokens)
        found: dict[int, np.ndarray] = {}
        for place in new.decided.tolist():
            text = self._texts.get(slots[place])
            if text is None or drafting[slots[place]] == OFF:
                continue
            came = new.after(place, text.known)
            if self._lookups is not None and text.is_looked_up:
                text.teach(self._lookups, came)
            text.follow(came)
            given = text.place.draft(most)
            if self._takes(text, given):
                found[place] = given
        return Chains.of(found, step) if found else None

    def _takes(self, text: Text, given: np.ndarray) -> bool:
        """Whether the ``given`` tokens are to be drafted, if any are, and no other draft. What a request predicts
        always is."""
        if self._lookups is None or not text.is_looked_up:
            return len(given) > 0
        return text.take(given, self._lookups)


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
