"""Which batches CUDA graphs are captured for: draft passes by number of requests, and no mixed batches with trees."""

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig
from vllm.logger import init_logger
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap

logger = init_logger(f"vllm.{__name__}")


@replaces(
    "vllm.config.compilation.CompilationConfig.cudagraph_mode",
    name="graphs of mixed batches",
    why=(
        "graphs of batches of any composition are captured with causal attention, and would run a step of trees as "
        "chains"
    ),
    how="lowered to a mode that captures decoding alone, where trees are verified; the log says so",
    upstream="none: vLLM asks the attention backends only",
    until="vLLM verifies trees whose shape differs by request",
    kind="set",
)
def capture_no_mixed_batches(compilation: CompilationConfig) -> None:
    """Lower a ``cudagraph_mode`` that captures batches of any composition in whole graphs (FULL) to one that captures
    decoding alone, as vLLM does where a backend asks for it.

    Such graphs are captured with causal attention and fit every batch of their number of tokens, so that a step that
    verifies trees would be run as if they were chains."""
    mode = compilation.cudagraph_mode
    if mode is None or mode.mixed_mode() != CUDAGraphMode.FULL:
        return
    in_pieces = compilation.splitting_ops_contain_attention()
    compilation.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE if in_pieces else CUDAGraphMode.FULL_DECODE_ONLY
    logger.warning(
        "cudagraph_mode %s would capture batches of trees and prompts as if they were chains; it is %s instead.",
        mode.name,
        compilation.cudagraph_mode.name,
    )


def drafted_sizes(vllm_config: VllmConfig) -> dict[int, list[int]]:
    """Return, for each number of requests that a graph is captured for, the numbers of tokens that may be drafted where
    a batch is padded to it, ascending: those of the schedule or, where the scheduler chooses, all sizes up to them.

    The graphs are for vLLM's capture sizes, and for the last numbers of requests before the schedule changes. So no
    batch is padded to a number of requests for which the memory of its drafts was not counted.
    """
    sizes = vllm_config.compilation_config.cudagraph_capture_sizes
    most = vllm_config.scheduler_config.max_num_seqs
    schedule = _by_load(vllm_config)
    captured = {min(size, most) for size in sizes or []}
    last = {number for number in range(1, max(captured, default=0)) if schedule[number] != schedule[number + 1]}
    numbers = sorted(captured | last)
    config = vllm_config.speculative_config
    drafted = {number: set(schedule[smaller + 1 : number + 1]) for smaller, number in pairwise([0, *numbers])}
    if config.adapts:
        drafted = {number: {size for size in config.sizes if size <= max(drafted[number])} for number in drafted}
    return {number: sorted(sizes) for number, sizes in drafted.items()}


@replaces(
    "vllm.v1.worker.gpu.cudagraph_utils.build_dynamic_sd_schedule_lookup",
    name="graphs of all sizes of drafts",
    why=(
        "vLLM captures graphs for the numbers of drafted tokens that its schedule has up to max_num_seqs, of verifying "
        "them and of drafting a chain of just that length; the scheduler of our methods chooses among all sizes, and a "
        "step without drafts must not be slower than plain ones"
    ),
    how="wrapped: the capture sees all numbers that the schedule has, whatever their ranges",
    upstream="none: vLLM's lengths follow from the number of requests alone",
    until="vLLM captures what its scheduler may choose",
    signature="num_speculative_tokens_per_batch_size vllm_max_batch_size vllm_num_speculative_tokens",
    also=("vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils.build_dynamic_sd_schedule_lookup",),
)
def _with_all_sizes(original: Callable) -> Callable:
    def build_dynamic_sd_schedule_lookup(
        num_speculative_tokens_per_batch_size: Any, vllm_max_batch_size: int, vllm_num_speculative_tokens: int
    ) -> list[int]:
        found = original(num_speculative_tokens_per_batch_size, vllm_max_batch_size, vllm_num_speculative_tokens)
        return [*found, *(nodes for _, _, nodes in num_speculative_tokens_per_batch_size)]

    return build_dynamic_sd_schedule_lookup


def capture_all_sizes() -> None:
    """Made in workers, once one of our methods is configured."""
    from vllm.v1.worker.gpu import cudagraph_utils
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar import cudagraph_utils as of_chains

    for module in (cudagraph_utils, of_chains):
        wrap(module, "build_dynamic_sd_schedule_lookup", _with_all_sizes)


def few_sizes(vllm_config: VllmConfig) -> list[int]:
    """Powers of two among those numbers of requests that the schedule drafts for, and the largest of them: a draft pass
    of few requests takes as long as its weights do to read, and is captured in many pieces or kinds."""
    drafted = {number for number, tokens in drafted_sizes(vllm_config).items() if any(tokens)}
    return sorted(number for number in drafted if number & (number - 1) == 0 or number == max(drafted))


def most_drafted(vllm_config: VllmConfig) -> list[int]:
    """Return, for each number of requests from 0 to ``max_num_seqs``, the most tokens that the schedule drafts for one
    of them while at least so many run. A step that verifies has no more for each."""
    return list(accumulate(reversed(_by_load(vllm_config)), max))[::-1]


def _by_load(vllm_config: VllmConfig) -> list[int]:
    """The schedule's number of drafted tokens for each number of running requests, from 0 on."""
    return build_dynamic_sd_schedule_lookup(
        vllm_config.speculative_config.schedule,
        vllm_max_batch_size=vllm_config.scheduler_config.max_num_seqs,
        vllm_num_speculative_tokens=vllm_config.num_speculative_tokens,
    )
