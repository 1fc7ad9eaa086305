"""The parts ``engine:...``: a step of vLLM on Llama-3-8B's shape with random weights, by method and load.

Random weights accept nothing, so acceptance is synthetic: vLLM's own mode for its methods, ``synthetic.py`` for ours.
The rates are assumptions; what needs none is ``step_ms`` and the tokens per step from which on a method is faster than
plain decoding.
"""

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite import dummy_models, gate, synthetic
from benchmarks.gpu_suite.engine_methods import LOADS, METHODS, STOCK, Load
from benchmarks.gpu_suite.engine_steps import Run

MAX_MODEL_LEN = 32768 + 1024
MOST_TOKENS = 1024
"""That a request gets while it is measured, drafts included."""
SHARE_OF_THE_GPU = 0.2
"""That an engine wants to find free when it starts."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def rows(
    name: str,
    size: dummy_models.Size = dummy_models.LLAMA_3_8B,
    loads: Iterable[Load] = LOADS,
    dtype: str = "bfloat16",
    max_model_len: int = MAX_MODEL_LEN,
    **engine: Any,
) -> Iterator[dict[str, Any]]:
    """A row per load; ``engine`` are further arguments of vLLM's ``LLM``."""
    os.environ |= ENVIRONMENT
    if find_spec("flashinfer") is None:
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    method, loads = METHODS[name], tuple(loads)
    batches = sorted({load.requests for load in loads})
    begun = time.perf_counter()
    from vllm import LLM

    from vllm_specext.plugin import register

    imported = time.perf_counter() - begun
    register()  # also where the package is a folder on the path and no entry point announces it
    synthetic.complete_block_drafters()
    if method.drafter is not None and method.drafter not in STOCK:
        synthetic.accept()
    with tempfile.TemporaryDirectory() as folder:
        models = dummy_models.write(Path(folder), size, dtype)
        speculative = method.config(models.get(method.model, Path()), batches)
        begun = time.perf_counter()
        llm = LLM(
            model=str(models["target"]),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype=dtype,
            speculative_config=speculative,
            enable_prefix_caching=False,
            max_num_seqs=max(batches),
            max_model_len=max_model_len,
            # By what is needed, not by what is free: other engines start beside this one.
            gpu_memory_utilization=SHARE_OF_THE_GPU,
            seed=0,
            **(
                {"kv_cache_memory_bytes": cache_bytes(size, loads, max_model_len)}
                | ({"cudagraph_capture_sizes": captured(batches, method.nodes)} if method.fixed else {})
                | engine
            ),
        )
        started = time.perf_counter() - begun
        compiled = llm.llm_engine.vllm_config.compilation_config.compilation_time
        run = Run(llm, speculative, size.vocabulary, max_model_len, chooses=not method.fixed)
        gate.wait()
        for load in loads:
            yield {
                "method": name,
                **load.row(),
                "import_seconds": round(imported, 1),
                "start_seconds": round(started, 1),
                "compile_seconds": round(compiled, 1),
                "nodes": method.nodes,
                **run.measure(load),
            }


def cache_bytes(size: dummy_models.Size, loads: Iterable[Load], max_model_len: int) -> int:
    """Of keys and values, for the load that has most of them, or the longest request that vLLM wants room for."""
    return size.cached_bytes * max(max_model_len, *(load.requests * (load.context + MOST_TOKENS) for load in loads))


def captured(batches: Iterable[int], nodes: int) -> list[int]:
    """Numbers of tokens that steps have: of the target, and of a drafter's single rows."""
    return sorted({rows for batch in batches for rows in (batch, batch * (1 + nodes))})
