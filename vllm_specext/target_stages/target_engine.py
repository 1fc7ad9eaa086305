"""The target on vLLM, as the stages run it: in this process, or in one for each part of the GPUs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from vllm_specext.engine.shared_pages import refuse_unshared_pages
from vllm_specext.measure.arguments import on_gpu
from vllm_specext.measure.memory import free_memory
from vllm_specext.preparation.answers import CapturingAnswerer
from vllm_specext.preparation.engine import capturing_llm
from vllm_specext.preparation.feature_folder import Capturing
from vllm_specext.preparation.processes import LocalEngine
from vllm_specext.preparation.ray_engines import ray_engines
from vllm_specext.preparation.spread import SpreadAnswerer
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.plan import FEATURE_BYTES
from vllm_specext.training.pipeline.settings import RunSettings
from vllm_specext.training.pipeline.target import read_target, sees_or_hears
from vllm_specext.vllm_process import set_default_threads, users_error, vllm_distribution

ON_CPU: dict[str, Any] = {"enforce_eager": True, "max_num_seqs": 16, "kv_cache_memory_bytes": 2**30}
"""vLLM would take half of a machine's memory, and compile for minutes."""
FEWEST, MOST = 64, 256
"""Conversations that an engine answers at once: more of them use a GPU better, but their states take memory."""
MEMORY = 0.25
"""The share of the free memory for states, where more than the fewest are answered. On a GPU pinned memory is had in
powers of two, so that it may become twice as much."""


class Answering(NamedTuple):
    """The target that answers."""

    engine: Capturing
    engines: int
    """Of how many it is made."""
    at_once: int
    """How many conversations they answer at once."""


def engine_arguments(settings: RunSettings) -> dict[str, Any]:
    """Arguments of ``vllm.LLM``."""
    own = {} if on_gpu() else ON_CPU
    # What a target sees or hears with is not loaded.
    text = {"language_model_only": True} if sees_or_hears(read_target(settings.target).config) else {}
    return {"dtype": settings.dtype, "tensor_parallel_size": settings.tensor_parallel, "seed": 0, **text, **own}


def layers_read(settings: RunSettings) -> tuple[int, ...] | None:
    """The target's layers whose states the method reads beside the last."""
    return TRAINABLE[settings.method].layers(read_target(settings.target))


def device_groups(devices: Sequence[str], each: int) -> list[str]:
    """``devices`` in groups of ``each``, as ``CUDA_VISIBLE_DEVICES`` has them; those that are left over are idle."""
    return [",".join(devices[first : first + each]) for first in range(0, len(devices) - each + 1, each)]


def at_once(settings: RunSettings, engines: int) -> int:
    """Conversations that each of so many ``engines`` of this machine answers at once."""
    if not on_gpu():
        return FEWEST
    states = 1 + len(layers_read(settings) or ())
    # Twice, as capturing has room.
    each = 2 * settings.max_length * states * read_target(settings.target).hidden_size * FEATURE_BYTES
    return max(FEWEST, min(MOST, int(MEMORY * free_memory() / (engines * each))))


@contextmanager
def capturing(settings: RunSettings, groups: Sequence[str]) -> Iterator[Answering]:
    """The target, which answers and keeps the states that the method reads, on each of the ``groups`` of GPUs, or on
    the machines of a Ray cluster."""
    each = FEWEST if settings.ray is not None else at_once(settings, max(1, len(groups)))
    sampling: dict[str, Any] = {} if settings.temperature is None else {"temperature": settings.temperature}
    llm = {
        "target": settings.target,
        "max_length": settings.max_length,
        "conversations": each,
        "aux_layers": layers_read(settings),
        **engine_arguments(settings),
    }
    if settings.ray is not None:
        with ray_engines(settings.ray, llm, sampling, settings.tensor_parallel) as engines:
            yield Answering(SpreadAnswerer(engines), len(engines), each * len(engines))
        return
    if len(groups) < 2:
        with plain_errors(settings.target):
            engine = capturing_llm(**llm)
            # Whoever checks the drafter on the same machine would hear it at the end.
            refuse_unshared_pages(engine.llm_engine.vllm_config.model_config)
        yield Answering(CapturingAnswerer(engine, sampling), 1, each)
        return
    own: list[LocalEngine] = []
    try:
        own.extend(LocalEngine(llm, sampling, devices) for devices in groups)
        for one in own:
            one.loaded.result()
        yield Answering(SpreadAnswerer(own), len(own), each * len(own))
    finally:
        for one in own:
            one.close()


@contextmanager
def plain_errors(target: str) -> Iterator[None]:
    """What the user can put right about an engine that does not load becomes a ``ConfigurationError``."""
    set_default_threads()
    with vllm_distribution():
        try:
            yield
        except Exception as error:
            if (ours := users_error(error, f"--target {target!r}")) is not None:
                raise ours from None
            raise
