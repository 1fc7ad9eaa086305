"""Deliberate faults, for the negative controls; each is put into vLLM or our code of an engine process by name."""

from functools import wraps
from typing import Any

from tests.engine.apart import forget_what_prefixes_add_up_to, prefixes_apart  # noqa: F401
from tests.engine.attention_faults import *  # noqa: F403
from tests.engine.connectors import (  # noqa: F401
    load_nothing_of_the_drafter,
    load_other_numbers,
    show_the_connector_every_pass,
)
from tests.engine.float8_weights import float8_beside_float32, float8_best_nodes, float8_every_draft  # noqa: F401
from tests.engine.kept_faults import *  # noqa: F403
from tests.engine.quantised import round_attention_otherwise, what_a_checkpoint_quantises_is_quantised  # noqa: F401
from tests.engine.recurrent_faults import *  # noqa: F403
from tests.engine.sounds import give_states_of_layers, place_on_three_axes  # noqa: F401
from tests.engine.walk_faults import *  # noqa: F403


def shift_target_positions() -> None:
    """The target turns its queries and keys by one position too many wherever it verifies drafted tokens."""
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    stock = DefaultModelState.preprocess_state

    def preprocess_state(self: Any, input_batch: Any, *args: Any) -> None:
        stock(self, input_batch, *args)
        if input_batch.num_draft_tokens:
            rows = input_batch.logits_indices[input_batch.expanded_local_pos > 0]
            input_batch.positions[rows] += 1

    DefaultModelState.preprocess_state = preprocess_state  # type: ignore[method-assign]


def take_every_batch_for_greedy() -> None:
    """One argmax draws for requests with noise, too."""
    import vllm_specext.engine.verification.greedy as greedy

    greedy.wants_nothing_else = lambda sampler, slots: True


def overlook_what_changes_logits() -> None:
    """One argmax draws wherever there is no noise."""
    import vllm_specext.engine.verification.greedy as greedy

    greedy.wants_nothing_else = lambda sampler, slots: not sampler.sampling_states.temperature.np[slots].any()


def skip_compaction() -> None:
    """Keys and values of an accepted path stay where its nodes were."""
    import vllm_specext.engine.verification.compaction as compaction

    compaction.compact = lambda caches, source, destination: None


def _after_layout(fault: Any) -> None:
    from vllm_specext.engine.verification.tree_states import TreeStates

    stock = TreeStates.lay_out

    def lay_out(self: Any, batch: Any, prefill_lens: Any) -> Any:
        layout = stock(self, batch, prefill_lens)
        if layout is not None:
            fault(layout, batch)
        return layout

    TreeStates.lay_out = lay_out  # type: ignore[method-assign]


def flip_an_ancestor_bit() -> None:
    """Every node but the first two is wrong about the first drafted one."""

    def fault(layout: Any, batch: Any) -> None:
        layout.visible[:, 2:, 0] ^= 1 << 1

    _after_layout(fault)


def add_a_level_to_every_depth() -> None:
    """The target turns the queries and keys of drafted nodes by one position too many."""

    def fault(layout: Any, batch: Any) -> None:
        batch.positions[: layout.rows] += (batch.expanded_local_pos[: layout.rows] > 0).long()

    _after_layout(fault)


def hang_padding_off_the_root() -> None:
    """What pads a tree is a child of the root."""
    import torch

    from vllm_specext.tree.topology import Topology

    def padded_after(self: Any, num_nodes: Any) -> Any:
        node = torch.arange(self.parents.shape[1], device=self.parents.device)
        return Topology(torch.where(node > num_nodes, 0, self.parents), self.depths, self.ancestors)

    Topology.padded_after = padded_after  # type: ignore[method-assign]


def write_drafted_keys_a_slot_early() -> None:
    """Where the target's last layers run over drafted tokens, the first of them overwrites a verified token's keys."""
    from dataclasses import replace

    from vllm_specext.engine.drafting.node_passes import NodePasses

    stock = NodePasses.__call__

    def run(self: Any, nodes: Any, *args: Any) -> Any:
        return stock(self, replace(nodes, slots=nodes.slots - 1), *args)

    NodePasses.__call__ = run  # type: ignore[method-assign]


def _before_rejection(fault: Any) -> None:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    stock = RejectionSampler._verify

    @wraps(stock)  # the plug-in looks at the signature
    def verify(self: Any, logits: Any, draft_logits: Any, *args: Any) -> Any:
        return stock(self, *fault(logits, draft_logits), *args)

    RejectionSampler._verify = verify  # type: ignore[method-assign]


def draft_probabilities_of_another_token() -> None:
    """Drafts that were drawn are verified with the probabilities of their neighbours in the vocabulary."""
    _before_rejection(lambda logits, draft_logits: (logits, draft_logits.roll(1, dims=-1)))


def mask_target_to_what_is_drafted() -> None:
    """The target may only say what the drafter could have said."""

    def fault(logits: Any, draft_logits: Any) -> Any:
        never = draft_logits.isneginf().all(dim=1).all(dim=0)
        return logits.masked_fill(never, -float("inf")), draft_logits

    _before_rejection(fault)


def draft_places_for_tokens() -> None:
    """The places of tokens among those that the drafter scores pass for the target's ids."""
    from vllm_specext.engine.drafting.draft_head import DraftHead

    DraftHead.target_ids = lambda self, tokens: tokens  # type: ignore[method-assign]


def mask_target_to_the_draft_vocabulary() -> None:
    """The target, too, scores only what the drafter scores."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    from vllm_specext.engine.drafting import draft_head

    stock, init = LogitsProcessor.forward, draft_head.DraftHead.__init__
    scored: list[Any] = []

    def made(self: Any, head: Any, processor: Any, ids: Any = None, *args: Any) -> None:
        init(self, head, processor, ids, *args)
        scored[:] = [] if ids is None else [ids]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        logits = stock(self, *args, **kwargs)
        for ids in scored:
            if logits.shape[-1] > len(ids):
                kept = logits.new_full(logits.shape, -float("inf"))
                kept[:, ids] = logits[:, ids]
                logits = kept
        return logits

    draft_head.DraftHead.__init__ = made  # type: ignore[method-assign]
    LogitsProcessor.forward = forward


def go_on_after_what_was_cut_off() -> None:
    """A session's next turn follows drafts that were accepted beyond the last token of the turn before."""
    import vllm_specext.engine.scheduler.scheduling as scheduling

    stock = scheduling.with_draft_limits

    def with_draft_limits(base: Any) -> Any:
        made = stock(base)
        made._handle_stopped_request = base._handle_stopped_request
        return made

    scheduling.with_draft_limits = with_draft_limits


def draft_another_token_on_the_last_rank() -> None:
    """Ranks part ways: the last one verifies another tree than the others."""
    from dataclasses import replace

    from vllm.distributed.parallel_state import get_tp_group

    import vllm_specext.engine.drafting.speculator as speculators

    stock = speculators.hand_over

    def hand_over(*args: Any) -> Any:
        draft = stock(*args)
        return replace(draft, tokens=draft.tokens ^ 1) if get_tp_group().is_last_rank else draft

    speculators.hand_over = hand_over  # type: ignore[attr-defined]


def shrink_drafters_cache() -> None:
    """To what one request of full length needs."""
    import vllm_specext.engine.standalone.cache as cache

    cache.SHARE = 0


def read_features_in_the_steps_order() -> None:
    """The drafter reads the first rows of a verified tree in place of those of the accepted path."""
    from vllm_specext.methods.eagle.speculator import Eagle3Drafter

    stock = Eagle3Drafter.features

    def features(self: Any, model: Any, step: Any, rows: Any) -> Any:
        made = stock(self, model, step, None)
        return made if rows is None else made[: len(rows)]

    Eagle3Drafter.features = features  # type: ignore[method-assign]


def read_states_of_the_step_before() -> None:
    """The drafter reads hidden states that the target left a step ago, where that step had as many rows."""
    from dataclasses import replace

    from vllm_specext.methods.eagle.speculator import Eagle3Drafter

    stock = Eagle3Drafter.features

    def features(self: Any, model: Any, step: Any, rows: Any) -> Any:
        states = step.aux_hidden_states
        before = getattr(self, "states_before", states)
        self.states_before = states
        fits = before[0].shape == states[0].shape
        return stock(self, model, replace(step, aux_hidden_states=before if fits else states), rows)

    Eagle3Drafter.features = features  # type: ignore[method-assign]


def draw_sizes() -> None:
    """No fault: every step drafts as much as is drawn from all that the scheduler may choose."""
    import random

    from vllm_specext.tree.draft_choice import DraftChoice

    chooser = random.Random(0)
    drawn: dict[int, Any] = {}

    def size(self: Any, requests: int) -> Any:
        if requests not in drawn:
            drawn[requests] = chooser.choice([size for size in self._sizes if size.nodes <= self._most[requests]])
        return drawn[requests]

    def has_moved(self: Any) -> bool:
        drawn.clear()
        return True

    DraftChoice.size = size  # type: ignore[method-assign]
    DraftChoice.has_moved = has_moved  # type: ignore[method-assign]


def draw_sizes_and_skip_compaction() -> None:
    draw_sizes()
    skip_compaction()


def draw_sizes_and_accept_every_draft() -> None:
    draw_sizes()
    accept_every_draft()  # noqa: F405


def learn_nothing() -> None:
    """The sharpness of drafters stays what it is assumed to be at first."""
    from vllm_specext.engine.drafting import calibrated

    stock = calibrated.calibrate

    def calibrate(known: Any, slots: Any, heat: Any, expected: Any, sampled: Any, verified: int, counts: Any) -> Any:
        return stock(known, slots, heat, expected, sampled, 0, None)

    calibrated.calibrate = calibrate  # type: ignore[attr-defined]
