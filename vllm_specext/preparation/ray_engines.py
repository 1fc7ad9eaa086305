"""An engine for each of a Ray cluster's devices, as actors (extra ``ray``)."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.preparation.answers import CapturingAnswerer
from vllm_specext.preparation.engine import capturing_llm


@contextmanager
def ray_engines(
    address: str, llm: Mapping[str, Any], sampling: Mapping[str, Any], gpus_each: int
) -> Iterator[list["RayEngine"]]:
    """An engine on every ``gpus_each`` GPUs of the cluster at ``address``, or, where it has none, on every machine.

    Raises ``ConfigurationError`` for a cluster that does not answer or has fewer GPUs.
    """
    import ray

    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"--ray is {address!r}, where no cluster answers ({type(error).__name__}); expected 'auto' or HOST:PORT of "
            "a Ray cluster."
        ) from error
    engines: list[RayEngine] = []
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if 0 < gpus < gpus_each:
            raise ConfigurationError(f"--tensor-parallel is {gpus_each}, but the Ray cluster has {gpus} GPUs.")
        machines = sum(node["Alive"] for node in ray.nodes())
        count, each = (gpus // gpus_each, gpus_each) if gpus else (machines, 0)
        engines += [RayEngine(llm, sampling, each) for _ in range(count)]
        yield engines
    finally:
        for engine in engines:
            engine.close()
        ray.shutdown()


class RayEngine:
    """A ``RemoteEngine`` in an actor with ``num_gpus`` devices, which Ray chooses, of the cluster that ``ray.init`` has
    connected to. Shards go to a folder that all machines have.

    ``llm`` are the arguments of `capturing_llm`.
    """

    def __init__(self, llm: Mapping[str, Any], sampling: Mapping[str, Any], num_gpus: int) -> None:
        import ray

        actor: Any = ray.remote(num_gpus=num_gpus, num_cpus=1)(_Actor)
        self.actor = actor.remote(dict(llm), dict(sampling))

    def submit(self, method: str, *arguments: Any) -> "Future[Any]":
        future: Future[Any] = getattr(self.actor, method).remote(*arguments).future()
        return future

    def close(self) -> None:
        import ray

        ray.kill(self.actor)


class _Actor:
    def __init__(self, llm: dict[str, Any], sampling: dict[str, Any]) -> None:
        self.answerer = CapturingAnswerer(capturing_llm(**llm), sampling)

    def exchange(self, *arguments: Any) -> Any:
        return self.answerer.exchange(*arguments)

    def abandon(self) -> None:
        self.answerer.abandon()

    def write(self, *arguments: Any) -> Any:
        return self.answerer.write(*arguments)
