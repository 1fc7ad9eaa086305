"""CUDA graphs on a CPU: what is captured is run and recorded, operation by operation, and replayed on the same memory.

As on a device, a replay knows nothing of Python: it reads tensors where they were when they were captured and leaves
its results there. What a device could not capture is refused: asking for a value on the host. The target's passes are
not recorded, but their batches are padded as graphs are, and their results gone with the next step as theirs are.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from vllm_specext.kernels.recording import Recording

PADDED_TO, MOST_PADDED = 16, 512
"""Rows of a batch of the target: a multiple of the first, as far as the second."""


class RecordedGraph:
    def __init__(self) -> None:
        self.recording = Recording()

    def replay(self) -> None:
        self.recording.replay()


@contextmanager
def recorded(graph: RecordedGraph, *args: Any, **kwargs: Any) -> Iterator[None]:
    """In the place of ``torch.cuda.graph``."""
    with graph.recording.taking():
        yield


def install(sizes: list[int], replays: list[Any]) -> None:
    """Have speculators capture their graphs for these numbers of requests before their first real step, and note in
    ``replays`` those that run."""
    import vllm.v1.worker.gpu.cudagraph_utils as stock
    import vllm.v1.worker.gpu.model_runner as runners
    from vllm.config.compilation import CUDAGraphMode
    from vllm.model_executor.layers.attention import Attention, MLAAttention
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

    import vllm_specext.engine.drafting.graphs as graphs
    from vllm_specext.engine.drafting.speculator import StepSpeculator

    # Inside of an operation nothing is recorded, and attention is one that asks Python for its metadata.
    for layer in (Attention, MLAAttention):
        layer.use_direct_call = property(lambda self: True, lambda self, value: None)  # type: ignore[assignment]
    CPUMLAImpl.do_kv_cache_update = _keep_latent  # type: ignore[method-assign]
    torch.cuda.CUDAGraph, torch.cuda.graph = RecordedGraph, recorded  # type: ignore[misc, assignment]
    type(current_platform).get_global_graph_pool = lambda self: None  # type: ignore[method-assign]
    for module in (stock, graphs):
        module.graph_capture = lambda device: nullcontext()  # type: ignore[attr-defined, assignment]
        module.capture_pool = lambda pool, config: nullcontext()  # type: ignore[attr-defined, assignment]
        module.current_stream = lambda: None  # type: ignore[attr-defined, assignment]

    _always_on(graphs.DraftGraphs, CUDAGraphMode.FULL)
    _size_as(DraftModelSpeculator, sizes)
    _note(graphs.DraftGraphs, replays)
    _capture_first(StepSpeculator)
    _leave_in_buffers(runners.GPUModelRunner)
    _pad_batches(runners)


def _keep_latent(self: Any, latent: Tensor, rotary: Tensor, kv_cache: Tensor, slots: Tensor, *_: Any) -> None:
    """Without a branch for rows that have no slot, as on a GPU. These go to the first block, which no request has."""
    kept = torch.cat((latent, rotary.squeeze(1)), dim=-1).to(kv_cache.dtype)
    kv_cache.view(-1, kept.shape[1])[slots.flatten().long().clamp(min=0)] = kept


def _always_on(manager: Any, mode: Any) -> None:
    stock = manager.__init__

    def create(self: Any, vllm_config: Any, device: Any, given: Any, *args: Any) -> None:
        stock(self, vllm_config, device, mode, *args)

    manager.__init__ = create


def _note(manager: Any, replays: list[Any]) -> None:
    """Numbers of requests; with those of rows for passes over nodes, and the kind's name where there is no request."""
    stock = manager.replay

    def replay(self: Any, size: int, kind: Any, *args: Any, **kwargs: Any) -> Any:
        rows = getattr(kind, "rows", None)
        replays.append(kind if kind == "window" else size if rows is None else [size, rows])
        return stock(self, size, kind, *args, **kwargs)

    manager.replay = replay


def _size_as(speculator: Any, sizes: list[int]) -> None:
    stock = speculator.__init__

    @wraps(stock)  # the plug-in looks at the signature
    def create(self: Any, vllm_config: Any, *args: Any) -> None:
        vllm_config.compilation_config.cudagraph_capture_sizes = sizes
        stock(self, vllm_config, *args)

    speculator.__init__ = create


def _capture_first(speculator: Any) -> None:
    stock = speculator.propose

    def propose(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("dummy_run") and not getattr(self, "has_captured", False):
            self.has_captured = True
            self.capture()
        return stock(self, *args, **kwargs)

    speculator.propose = propose


def _leave_in_buffers(runner: Any) -> None:
    """What the target's pass leaves is gone after the step, and what it leaves for the rows that pad a batch is
    nothing to read."""
    stock = runner.sample_tokens

    @wraps(stock)  # the plug-in looks at the signature
    def sample_tokens(self: Any, grammar_output: Any) -> Any:
        state = self.execute_model_state
        left = [] if state is None else [state.hidden_states, *(state.aux_hidden_states or [])]
        for states in left:
            _lose(states[state.input_batch.num_tokens :])
        made = stock(self, grammar_output)
        for states in left:
            _lose(states)
        return made

    runner.sample_tokens = sample_tokens


@torch.inference_mode()
def _lose(states: Tensor) -> None:
    states.fill_(float("nan"))


def _pad_batches(runners: Any) -> None:
    """The target's batches have as many rows as the graphs of its pieces would have."""
    stock = runners.dispatch_cg_and_sync_dp

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        batch, sync = stock(*args, **kwargs)
        padded = -(-batch.num_tokens // PADDED_TO) * PADDED_TO
        return (replace(batch, num_tokens=padded) if padded <= MOST_PADDED else batch), sync

    runners.dispatch_cg_and_sync_dp = dispatch
