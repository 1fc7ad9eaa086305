"""An engine for each of a Ray cluster's devices, as actors (extra ``ray``)."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from vllm_specext.preparation.answers import CapturingAnswerer
from vllm_specext.preparation.engine import capturing_llm


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

    def answer(self, *arguments: Any) -> Any:
        return self.answerer.answer(*arguments)

    def write(self, *arguments: Any) -> Any:
        return self.answerer.write(*arguments)
