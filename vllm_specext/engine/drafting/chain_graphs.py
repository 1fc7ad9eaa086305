"""What vLLM's speculator for chains captures where most of what it is scheduled to draft are trees."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.drafting.tree_sizes import TreeSizes


@contextmanager
@replaces(
    "vllm.config.speculative.SpeculativeConfig.num_speculative_tokens_per_batch_size",
    name="schedule while graphs are captured",
    why=(
        "vLLM captures the drafter's first pass and its decoding for every number in the schedule; trees are no "
        "chains, and the first pass after a tree is part of the next one's growth"
    ),
    how="set while our speculator plans and captures graphs, and no longer: sizes of trees count as nothing",
    upstream="none: vLLM drafts chains only",
    until="vLLM captures what the speculator asks for",
    kind="set",
)
def schedule_of_chains(config: Any, sizes: TreeSizes) -> Iterator[None]:
    """Within it, the schedule of ``config`` has the ``sizes`` that vLLM itself drafts, and 0 for all others."""
    schedule = config.num_speculative_tokens_per_batch_size
    if schedule is None and not sizes.grows_chains:  # chains of one length
        yield
        return
    longest = 0 if sizes.grows_chains else sizes.largest.depth
    chains = [[first, last, nodes if nodes <= longest else 0] for first, last, nodes in config.schedule]
    config.num_speculative_tokens_per_batch_size = chains
    try:
        yield
    finally:
        config.num_speculative_tokens_per_batch_size = schedule
