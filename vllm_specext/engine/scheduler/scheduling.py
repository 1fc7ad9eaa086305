"""The scheduler of our methods, which drafts less for some requests than for others.

A request gets no drafts where speculation is off, and a chain where a tree will not do (``requests.py``). How many
tokens are drafted at a load follows from what is measured (``measured_drafts.py``). Trees that clients have drafted are
verified whole (``client_room.py``). And a session of streaming input goes on where its last turn ended.

The scheduler only counts, but for grammars, which it follows along the trees (``grammars.py``). Whatever the drafter
writes for a request with a chain, the scheduler gives it rows for the first few drafted tokens only, and the worker
makes those a chain by the same rule.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.client_trees import reads_client_trees
from vllm_specext.engine.config import is_ours
from vllm_specext.engine.requests import Drafting, drafting_for, has_custom_processors, prediction_of, shorten_in_logs
from vllm_specext.engine.scheduler.client_room import ClientRoom
from vllm_specext.engine.scheduler.grammars import Grammars
from vllm_specext.engine.scheduler.kept_costs import KeptCosts
from vllm_specext.engine.scheduler.measured_drafts import MeasuredDrafts

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler as _Scheduler
else:
    _Scheduler = object  # because a scheduler that the user names need not be a subclass of vLLM's


UNKNOWN = -1
"""A drafted token whose id the scheduler does not know."""


@cache
def with_draft_limits(base: type[Scheduler]) -> type[Scheduler]:
    """A subclass of ``base``, vLLM's choice, for our methods; with another configuration it makes a ``base``."""
    return type(f"SpecExt{base.__name__}", (DraftLimits, base), {"base": base, "__module__": __name__})


class DraftLimits(_Scheduler):
    """What our methods' scheduler does before or after vLLM's, which follows it among the bases of the class."""

    base: type[Scheduler]
    dynamic_sd_lookup: list[int] | None  # drafted tokens by batch size, vLLM's

    def __new__(cls, vllm_config: Any, **others: Any) -> Any:
        if is_ours(vllm_config.speculative_config):
            return super().__new__(cls)
        return cls.base(vllm_config=vllm_config, **others)

    def __init__(self, vllm_config: Any, **others: Any) -> None:
        super().__init__(vllm_config=vllm_config, **others)
        self._reads = vllm_config.speculative_config.declared.reads
        self._needs_prediction = vllm_config.speculative_config.options.needs_prediction
        self._tree, self._levels = vllm_config.speculative_config.tree, vllm_config.speculative_config.levels
        self._predicted = vllm_config.speculative_config.options.predicted is not None
        self._clients: ClientRoom | None = None
        if reads_client_trees(vllm_config.speculative_config):
            self._clients = ClientRoom(self.num_spec_tokens)
        self._grammars = None if self._tree is None else Grammars(self.structured_output_manager)
        self._custom_processors = has_custom_processors(vllm_config.model_config)
        self._has_states = vllm_config.model_config.is_hybrid
        # Most drafted tokens of each request that has a limit of its own.
        self._draft_limits: dict[str, int] = {}
        if (self._tree is not None or self._needs_prediction) and self.dynamic_sd_lookup is None:
            # With a schedule, vLLM does not pad the first decoding step of a request to the full number of drafted
            # tokens; the padding would pass for the tree of whatever request had the slot before, and be verified for
            # requests without a prediction.
            self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)
        self.measured_drafts: MeasuredDrafts | None = None
        if vllm_config.speculative_config.adapts:
            assert self.dynamic_sd_lookup is not None
            sizes, any_depth = vllm_config.speculative_config.sizes, vllm_config.speculative_config.any_depth
            device_type = current_platform.device_type
            kept = KeptCosts(vllm_config)
            drafts = self.dynamic_sd_lookup, sizes, self._tree, any_depth
            self.measured_drafts = MeasuredDrafts(*drafts, device_type, kept)

    def add_request(self, request: Request) -> None:
        shorten_in_logs(request.sampling_params)
        super().add_request(request)
        if request.request_id in self.requests:
            self._note_draft_limit(self.requests[request.request_id])
            if self._clients is not None:
                self._clients.note(request)

    def _update_request_as_session(self, session: Request, update: Any) -> None:
        super()._update_request_as_session(session, update)
        self._note_draft_limit(session)

    @replaces(
        "vllm.v1.core.sched.scheduler.Scheduler._handle_stopped_request",
        name="sessions of streaming input",
        why=(
            "without asynchronous scheduling vLLM counts drafts that were accepted beyond a turn's last token as "
            "computed: the next turn's tokens get their keys and values, or the scheduler ends"
        ),
        how="overridden in our subclass of vLLM's scheduler: a turn counts no more tokens as computed than it has",
        upstream="vllm#44526 (a smaller remedy: the scheduler does not end)",
        until="vLLM goes on from the last token that a turn keeps",
        signature="self request",
    )
    @replaces(
        "vllm.v1.request.Request.num_computed_tokens",
        name="computed tokens of a session",
        why="accepted drafts beyond a turn's last token count as computed",
        how="set to no more than the turn keeps, when a turn of a session ends",
        upstream="vllm#44526 (a smaller remedy: the scheduler does not end)",
        until="vLLM goes on from the last token that a turn keeps",
        kind="set",
    )
    def _handle_stopped_request(self, request: Request) -> bool:
        if request.resumable:
            # Drafts that were accepted beyond the turn's last token count as computed, but the next turn's tokens
            # take their places.
            kept = request.num_tokens - 1 + request.num_output_placeholders
            request.num_computed_tokens = min(request.num_computed_tokens, kept)
        finished: bool = super()._handle_stopped_request(request)
        return finished

    def _free_blocks(self, request: Request) -> None:
        super()._free_blocks(request)
        self._draft_limits.pop(request.request_id, None)
        if self._clients is not None:
            self._clients.forget(request.request_id)
        if self._grammars is not None:
            self._grammars.forget(request.request_id)

    def _note_draft_limit(self, request: Request) -> None:
        drafting = drafting_for(request, self._reads, self._custom_processors, self._needs_prediction)
        # A session's next turn begins after what its turn keeps, and a recurrent state has no way back from drafts that
        # were accepted beyond that.
        if drafting is Drafting.OFF or (request.resumable and self._has_states):
            self._draft_limits[request.request_id] = 0
        elif drafting is Drafting.CHAIN and self._tree is not None:
            # What a request predicts is a chain too, and may be longer than trees are deep.
            predicts = self._predicted and prediction_of(request.sampling_params)
            self._draft_limits[request.request_id] = self._levels if predicts else self._tree.depth
        else:
            self._draft_limits.pop(request.request_id, None)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        limits = self._draft_limits
        if self._clients is not None:
            limits.update(dict.fromkeys(self._clients.drafted(scheduler_output, self.requests), 0))
            room = self._clients.make(scheduler_output)
            limits = limits | {name: min(most, limits.get(name, most)) for name, most in room.items()}
        if self.measured_drafts is not None:
            self.measured_drafts.tell_depth(scheduler_output)
        super()._update_after_schedule(scheduler_output)
        # Asynchronous scheduling has just promised every request the same number of drafted tokens, in one list.
        for request_id in limits.keys() & scheduler_output.num_scheduled_tokens.keys():
            request = self.requests[request_id]
            self._promise(request, request.spec_token_ids[: limits[request_id]])

    @replaces(
        "vllm.v1.request.Request.spec_token_ids",
        name="promised drafts",
        why=(
            "asynchronous scheduling promises every request the same number of drafted tokens; and drafts that a "
            "grammar is to follow are cut to what it allows, as chains"
        ),
        how="cut to the request's limit, on requests that have one; and for a grammar the whole tree is promised",
        upstream="none: no way to limit drafts per request",
        until="vLLM has a number of drafted tokens per request, and verifies trees",
        kind="set",
    )
    def _promise(self, request: Request, tokens: list[int]) -> None:
        request.spec_token_ids = tokens

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        if self._draft_limits:
            for request_id, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True):
                if request_id in self._draft_limits:
                    del tokens[self._draft_limits[request_id] :]
        if self._grammars is None:
            super().update_draft_token_ids(draft_token_ids)
            return
        others, kept = self._grammars.take(draft_token_ids, self.requests)
        super().update_draft_token_ids(others)
        for request_id, count in kept.items():
            request = self.requests[request_id]
            if not request.is_finished():
                self._promise(request, [] if request.is_prefill_chunk else [UNKNOWN] * count)

    def update_draft_token_ids_in_output(
        self, draft_token_ids: DraftTokenIds, scheduler_output: SchedulerOutput
    ) -> None:
        if self._grammars is not None:
            draft_token_ids, _ = self._grammars.take(draft_token_ids, self.requests)
        # What is kept stays unknown in the output, as asynchronous scheduling has promised it.
        super().update_draft_token_ids_in_output(draft_token_ids, scheduler_output)

    @replaces(
        "vllm.v1.core.sched.scheduler.Scheduler.get_grammar_bitmask",
        name="grammars over trees",
        why="vLLM advances a grammar along what was drafted as if it was a chain",
        how=(
            "overridden in our subclass of vLLM's scheduler: vLLM is told of a tree as of a draft that it does not "
            "know, and fills its first mask; ours fills the others"
        ),
        upstream="vLLM verifies no trees",
        until="vLLM verifies trees whose shape differs by request",
        signature="self scheduler_output",
    )
    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        output = super().get_grammar_bitmask(scheduler_output)
        if output is not None and self._grammars is not None:
            drafted = scheduler_output.scheduled_spec_decode_tokens
            output = self._grammars.fill(output, drafted, self.requests, self.num_spec_tokens)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.measured_drafts is not None:
            ended = model_runner_output.req_ids, model_runner_output.sampled_token_ids
            self.measured_drafts.note(scheduler_output, *ended)
        return outputs

    def shutdown(self) -> None:
        if self.measured_drafts is not None:
            self.measured_drafts.keep()
        super().shutdown()
