"""vLLM's sleep of level 2 on a CPU, which has none: what was allocated while models were loaded is overwritten, but for
what lies in memory that a sleep keeps.

Overwritten is what our code allocates, and the target's weights, which are loaded anew on waking. What vLLM makes for
itself at that time is its own to bring back. Buffers of models are spared, as vLLM copies them.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

OURS = tuple(f"/vllm_specext/{folder}/" for folder in ("engine", "kernels", "methods", "tree"))
HOOKS = "/vllm_specext/engine/hooks/"
"""Code that is there whenever vLLM allocates."""
WEIGHTS = "weights"


class Allocator:
    """The part of vLLM's allocator that our code uses."""

    def __init__(self) -> None:
        self.tag: str | None = None
        self.storages: dict[int, tuple[str, Any]] = {}
        """By address: tag and storage of what our code allocated, which thereby stays where it is."""

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        before, self.tag = self.tag, tag
        try:
            yield
        finally:
            self.tag = before

    def note(self, storage: Any) -> None:
        assert self.tag is not None
        if storage.nbytes() and storage.device.type != "meta":
            self.storages.setdefault(storage.data_ptr(), (self.tag, storage))

    def sleep(self, models: list[Any]) -> int:
        """Overwrite what a sleep of level 2 gives back, and tell how much that is, the target's weights apart. It is
        the first of the ``models``."""
        target = models[0]
        buffers = {tensor.untyped_storage().data_ptr() for model in models for tensor in model.buffers()}
        lost = [one for place, (tag, one) in self.storages.items() if tag == WEIGHTS and place not in buffers]
        for storage in (*lost, *(weight.untyped_storage() for weight in target.parameters())):
            storage.fill_(255)
        return len(lost)


class _Noting(TorchDispatchMode):
    def __init__(self, allocator: Allocator) -> None:
        super().__init__()
        self.allocator = allocator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        for one in tree_leaves(made):
            if isinstance(one, Tensor) and one.untyped_storage().data_ptr() not in given and _for_ourselves():
                self.allocator.note(one.untyped_storage())
        return made


def _for_ourselves() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if any(folder in file for folder in OURS) and HOOKS not in file:
            return True
        frame = frame.f_back
    return False


allocator = Allocator()


def note_what_is_allocated() -> None:
    from vllm.v1.worker.gpu_worker import Worker

    from vllm_specext.engine import kept_memory

    class Platform:
        @staticmethod
        def is_cuda_alike() -> bool:
            return True

    kept_memory.current_platform = Platform()
    kept_memory.get_mem_allocator_instance = lambda: allocator
    stock = Worker.load_model

    def load_model(self: Any, **kwargs: Any) -> None:
        self.vllm_config.model_config.enable_cumem_allocator = True
        with allocator.use_memory_pool(WEIGHTS), _Noting(allocator):
            stock(self, **kwargs)

    Worker.load_model = load_model  # type: ignore[method-assign]
