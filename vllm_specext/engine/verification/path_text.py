"""The penalties, bad words and budgets for thinking of a sampler that draws at the nodes of draft trees.

vLLM's processors of these take the earlier rows of a request for the text before a row. Here they get the tokens of the
path to its node. The requests' parameters and counts stay where vLLM has them.
"""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor
from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext
from vllm.v1.worker.gpu.sample.penalties import PenaltiesState
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.thinking_budget import ThinkingBudgetState
from vllm.v1.worker.gpu.states import RequestState

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.kernels.path_text import ban, end_thinking, penalise
from vllm_specext.kernels.path_text.rows import BadWords, Paths, Penalties, Said, Thinking

Apply = Callable[[Tensor, LogitsContext], Tensor]


def read_paths(sampler: Sampler, trees: TreeStates) -> None:
    """Have those of ``sampler`` read the paths of ``trees`` in steps that verify drafts."""
    end_thinking_on_paths(sampler.thinking_budget_state, trees)
    for processor in sampler.logits_processors:
        if isinstance(processor, PenaltiesState):
            penalise_on_paths(processor, trees)
        elif isinstance(processor, BadWordsState):
            ban_on_paths(processor, trees)


def paths_of(context: LogitsContext, trees: TreeStates) -> Paths:
    nodes = context.expanded_local_pos
    return Paths(context.expanded_idx_mapping, nodes, context.input_ids, trees.topology.parents, trees.levels)


def said_in(requests: RequestState) -> Said:
    return Said(requests.all_token_ids.gpu, requests.prompt_len.gpu, requests.total_len.gpu)


def has_drafts(context: LogitsContext) -> bool:
    return len(context.expanded_idx_mapping) != len(context.idx_mapping)


@replaces(
    "vllm.v1.worker.gpu.sample.penalties.PenaltiesState.apply",
    name="penalties on trees",
    why="vLLM counts the tokens of all earlier rows of a request, of which only a row's ancestors are text before it",
    how="set on the sampler's own state: in steps with drafts our kernel counts the tokens of the path to each node",
    upstream="vLLM verifies no trees",
    until="vLLM verifies trees whose shape differs by request",
    signature="self logits ctx",
    kind="set",
)
def penalise_on_paths(state: PenaltiesState, trees: TreeStates) -> None:
    of_rows: Apply = state.apply

    def apply(logits: Tensor, ctx: LogitsContext) -> Tensor:
        if not has_drafts(ctx):
            return of_rows(logits, ctx)
        if state.use_penalty[ctx.idx_mapping_np].any():
            three = state.repetition_penalty.gpu, state.frequency_penalty.gpu, state.presence_penalty.gpu
            penalise(logits, paths_of(ctx, trees), Penalties(*three, state.prompt_bin_mask, state.output_bin_counts))
        return logits

    state.apply = apply


@replaces(
    "vllm.v1.worker.gpu.sample.bad_words.BadWordsState.apply",
    name="bad words on trees",
    why="vLLM takes the earlier rows of a request for the text that a bad word may continue",
    how="set on the sampler's own state: in steps with drafts our kernel compares with the path to each node",
    upstream="vLLM verifies no trees",
    until="vLLM verifies trees whose shape differs by request",
    signature="self logits ctx",
    kind="set",
)
def ban_on_paths(state: BadWordsState, trees: TreeStates) -> None:
    of_rows: Apply = state.apply

    def apply(logits: Tensor, ctx: LogitsContext) -> Tensor:
        if not has_drafts(ctx):
            return of_rows(logits, ctx)
        most = int(state.num_bad_words.np[ctx.idx_mapping_np].max())
        if most:
            words = BadWords(state.bad_word_token_ids.gpu, state.bad_word_offsets.gpu, state.num_bad_words.gpu)
            ban(logits, paths_of(ctx, trees), words, said_in(state.req_states), most)
        return logits

    state.apply = apply


@replaces(
    "vllm.v1.worker.gpu.sample.thinking_budget.ThinkingBudgetState.apply",
    name="budgets for thinking on trees",
    why="vLLM takes the earlier rows of a request for the text in which it looks for a beginning and an end",
    how=(
        "set on the sampler's own state: in steps with drafts vLLM's kernel finds the markers in the text alone, and "
        "ours looks for them on the path to each node"
    ),
    upstream="vLLM verifies no trees",
    until="vLLM verifies trees whose shape differs by request",
    signature="self logits ctx",
    kind="set",
)
def end_thinking_on_paths(state: ThinkingBudgetState, trees: TreeStates) -> None:
    of_rows: Callable[[Tensor, LogitsContext], None] = state.apply

    def apply(logits: Tensor, ctx: LogitsContext) -> None:
        if not has_drafts(ctx):
            of_rows(logits, ctx)
        elif state.enabled and state.use_thinking_budget[ctx.idx_mapping_np].any():
            nothing = replace(
                ctx, expanded_idx_mapping=ctx.expanded_idx_mapping[:0], expanded_local_pos=ctx.expanded_local_pos[:0]
            )
            of_rows(logits[:0], nothing)
            markers = state.reasoning_start_token_ids, state.natural_reasoning_end_token_ids
            thinking = Thinking(
                state.thinking_token_budget.gpu,
                state.cached_last_start,
                state.cached_last_end,
                *markers,
                state.reasoning_end_token_ids,
            )
            end_thinking(logits, paths_of(ctx, trees), thinking, said_in(state.req_states))

    state.apply = apply
