"""What vLLM's configuration answers when one of our methods is configured: the model runner, the scheduler, the slots
reserved for drafts, and whether steps are scheduled ahead."""

import logging
from collections.abc import Callable
from typing import Any, Literal, get_args

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap, wrap_property
from vllm_specext.registry import RUNNABLE

logger = logging.getLogger(f"vllm.{__name__}")


def wrap_config() -> None:
    import vllm.config.vllm as config_module
    from vllm.config import SchedulerConfig, VllmConfig

    wrap_property(VllmConfig, "use_v2_model_runner", _use_v2_model_runner)
    wrap_property(VllmConfig, "num_lookahead_tokens", _num_lookahead_tokens)
    wrap(VllmConfig, "_maybe_disable_dynamic_sd_for_data_parallel", _keep_schedule_of_independent_ranks)
    wrap(SchedulerConfig, "get_scheduler_cls", _get_scheduler_cls)
    _open_asynchronous_scheduling(config_module)


@replaces(
    "vllm.config.vllm.EagleModelTypes",
    name="asynchronous scheduling",
    why="vLLM switches asynchronous scheduling off for methods that this Literal does not name",
    how="rebound with our methods added",
    upstream="none: the list is vLLM's own",
    until="vLLM lets plug-ins register speculative methods",
)
def _open_asynchronous_scheduling(config_module: Any) -> None:
    if not set(RUNNABLE) <= set(get_args(config_module.EagleModelTypes)):
        config_module.EagleModelTypes = Literal[(config_module.EagleModelTypes, *RUNNABLE)]


@replaces(
    "vllm.config.vllm.VllmConfig.use_v2_model_runner",
    name="runner choice",
    why="our methods run on model runner V2 only, and on a CPU vLLM falls back to V1 because Triton is missing",
    how="wrapped property: true for our methods",
    upstream="V1 is deprecated upstream (comment in config/vllm.py)",
    until="V2 is the only runner, on CPU too (vllm#49583)",
    signature="self",
)
def _use_v2_model_runner(original: Callable) -> Callable:
    def use_v2_model_runner(self: Any) -> bool:
        from vllm_specext.engine.config import is_ours

        return is_ours(self.speculative_config) or original(self)

    return use_v2_model_runner


@replaces(
    "vllm.config.vllm.VllmConfig.num_lookahead_tokens",
    name="lookahead slots",
    why="vLLM reserves one KV slot for each drafted token; growing a tree writes another number of them",
    how="wrapped property: the number that growing the tree writes; vLLM's own for chains",
    upstream="none: vLLM drafts chains only",
    until="vLLM asks the speculator",
    signature="self",
)
def _num_lookahead_tokens(original: Callable) -> Callable:
    def num_lookahead_tokens(self: Any) -> int:
        from vllm_specext.engine.config import is_ours

        slots = self.speculative_config.options.lookahead if is_ours(self.speculative_config) else None
        return original(self) if slots is None else slots

    return num_lookahead_tokens


@replaces(
    "vllm.config.vllm.VllmConfig._maybe_disable_dynamic_sd_for_data_parallel",
    name="schedule under data parallelism",
    why=(
        "with several data-parallel ranks vLLM drops the schedule of drafted tokens by load; the ranks of a dense "
        "target do not work in step, and would draft the largest trees at any load"
    ),
    how="wrapped: our methods keep the schedule where the target is dense",
    upstream="none known: vLLM does not ask whether the ranks work in step",
    until="vLLM keeps the schedule of dense targets",
    signature="self",
)
def _keep_schedule_of_independent_ranks(original: Callable) -> Callable:
    def _maybe_disable_dynamic_sd_for_data_parallel(self: Any) -> None:
        from vllm_specext.engine.config import is_ours

        if not is_ours(self.speculative_config) or self.model_config.is_moe:
            original(self)

    return _maybe_disable_dynamic_sd_for_data_parallel


@replaces(
    "vllm.config.scheduler.SchedulerConfig.get_scheduler_cls",
    name="scheduler",
    why="vLLM schedules the same number of drafted tokens for every request; some get a chain, others none",
    how="wrapped: for our methods a subclass of vLLM's choice shortens the drafts of such requests",
    upstream="none: no way to limit drafts per request",
    until="vLLM has a number of drafted tokens per request",
    signature="self",
)
def _get_scheduler_cls(original: Callable) -> Callable:
    def get_scheduler_cls(self: Any) -> Any:
        from vllm_specext.engine.scheduler.scheduling import with_draft_limits

        return with_draft_limits(original(self))

    return get_scheduler_cls
