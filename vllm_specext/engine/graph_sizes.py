"""For how many requests draft passes are captured."""

from itertools import pairwise

from vllm.config import VllmConfig
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup


def drafted_sizes(vllm_config: VllmConfig) -> dict[int, list[int]]:
    """Of each number of requests that a graph is captured for, vLLM's capture sizes, the numbers of tokens that the
    schedule drafts where a batch is padded to it; ascending."""
    sizes = vllm_config.compilation_config.cudagraph_capture_sizes
    most = vllm_config.scheduler_config.max_num_seqs
    schedule = build_dynamic_sd_schedule_lookup(
        vllm_config.speculative_config.schedule,
        vllm_max_batch_size=most,
        vllm_num_speculative_tokens=vllm_config.num_speculative_tokens,
    )
    numbers = sorted({min(size, most) for size in sizes or []})
    return {number: sorted(set(schedule[smaller + 1 : number + 1])) for smaller, number in pairwise([0, *numbers])}
