"""In processes that find vLLM imported, a model's class is looked at where the question is asked.

vLLM asks a new process, which imports vLLM for it, once for each class on a machine. That is because an import could
begin to use a GPU; here there is none (``forks.py``), and the import is done.
"""

from collections.abc import Callable
from typing import TypeVar

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import put

Answer = TypeVar("Answer")


@replaces(
    "vllm.model_executor.models.registry._run_in_subprocess",
    name="the place where a model's class is looked at",
    why="a new process imports vLLM for each class that a machine has not loaded before, which takes ten seconds",
    how="called in the process itself, only in those that the demonstration and bench fork on a CPU, and in tests",
    upstream="none needed",
    until="always",
    signature="fn",
)
def _run_in_subprocess(fn: Callable[[], Answer]) -> Answer:
    return fn()


def look_here() -> None:
    from vllm.model_executor.models import registry

    put(registry, "_run_in_subprocess", _run_in_subprocess)
