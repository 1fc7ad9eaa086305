"""Which of vLLM's loggers of statistics get the metrics of draft trees, and those that a method has of its own."""

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import (
    LoggingStatLogger,
    PerEngineStatLoggerAdapter,
    PrometheusStatLogger,
    StatLoggerManager,
)

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.metrics import DraftTreeLogging, DraftTreeStatLogger
from vllm_specext.registry import RUNNABLE, load


@replaces(
    "vllm.v1.metrics.loggers.StatLoggerManager.stat_loggers",
    name="metrics of draft trees",
    why="vLLM reads its entry points for stat loggers only for the async engine",
    how="one more for each Prometheus logger of an engine with one of our methods",
    upstream="vllm#22456 (the entry points)",
    until="vLLM lets a configuration bring its stat logger",
    kind="set",
)
@replaces(
    "vllm.v1.metrics.loggers.LoggingStatLogger.spec_decoding_logging",
    name="log line on speculation",
    why="vLLM logs an acceptance rate for each drafted token; a tree has one for each depth",
    how="set on the loggers of an engine with one of our methods",
    upstream="vllm#22456 (the entry points)",
    until="vLLM lets a configuration bring its stat logger",
    kind="set",
)
@replaces(
    "vllm.v1.metrics.loggers.PrometheusStatLogger.ec_connector_prom",
    name="speculator's statistics in Prometheus",
    why="a speculator's statistics come in the place of those of an encoder-cache connector",
    how="set where the method has metrics of its own",
    upstream="vllm#22456 (the entry points)",
    until="vLLM lets a configuration bring its stat logger",
    kind="set",
)
@replaces(
    "vllm.v1.metrics.loggers.LoggingStatLogger.ec_connector_logging",
    name="speculator's statistics in the log",
    why="a speculator's statistics come in the place of those of an encoder-cache connector",
    how="set where the method has metrics of its own",
    upstream="vllm#22456 (the entry points)",
    until="vLLM lets a configuration bring its stat logger",
    kind="set",
)
def attach(manager: StatLoggerManager, vllm_config: VllmConfig) -> None:
    """Add the metrics of draft trees to the loggers that vLLM chose for an engine with one of our methods.

    They go where vLLM's own go: to Prometheus or Ray, and to the log only if vLLM writes its statistics there.
    """
    depth = vllm_config.speculative_config.levels
    published, logged = [], []
    for found in tuple(manager.stat_loggers):
        if isinstance(found, PrometheusStatLogger):
            manager.stat_loggers.append(DraftTreeStatLogger(found, depth))
            published.append(found)
        loggers = found.per_engine_stat_loggers.values() if isinstance(found, PerEngineStatLoggerAdapter) else (found,)
        for each in loggers:
            if isinstance(each, LoggingStatLogger):
                each.spec_decoding_logging = DraftTreeLogging(depth)
                logged.append(each)
    if own := RUNNABLE[vllm_config.speculative_config.method].metrics:
        in_prometheus, in_log = load(own)
        for prometheus in published:
            prometheus.ec_connector_prom = in_prometheus(prometheus)
        for logger in logged:
            logger.ec_connector_logging = in_log()
