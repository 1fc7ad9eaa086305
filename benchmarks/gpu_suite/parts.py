"""The parts of the suite, in the order in which they run.

A part yields its rows one by one. A row with ``wrong`` says that a result was not right; one with ``skipped``, why
something was not measured.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from benchmarks.gpu_suite.engine_methods import METHODS

Rows = Iterator[dict[str, Any]]
HERE = "benchmarks/gpu_suite/"
MEASURING = (HERE + "timing.py", HERE + "ceilings.py")


@dataclass(frozen=True)
class Part:
    name: str
    about: str
    module: str
    function: str
    least: float
    """Seconds below which it is not begun."""
    limit: float
    """Seconds after which it is stopped; the rows it has by then are kept."""
    sources: tuple[str, ...]
    """Files and folders that decide its figures: while they are the same, it need not run again."""
    arguments: tuple[str, ...] = ()
    needs: str = ""
    """A module that has to be installed."""
    is_timed: bool = True
    """Whether what else runs on the machine would spoil its figures."""
    starts_slowly: bool = False
    """Whether it gets ready and then waits at the gate (``gate.py``): ``limit`` counts from there."""

    def rows(self) -> Rows:
        """Imports what it measures only now: a kernel that cannot be imported costs its own part alone."""
        function: Callable[..., Rows] = getattr(import_module(f"benchmarks.gpu_suite.{self.module}"), self.function)
        return function(*self.arguments)


def _kernel(name: str) -> str:
    return f"vllm_specext/kernels/{name}"


ATTENTION = (*MEASURING, HERE + "attention.py", HERE + "attention_problem.py", _kernel("tree_attention"))
FUSION = (*MEASURING, HERE + "fusion.py", _kernel("token_guided_fusion"))
SMALL = (*MEASURING, HERE + "small_kernels.py", _kernel("pointers.py"))
ENGINE = (
    *(HERE + name for name in ("engine.py", "engine_methods.py", "engine_steps.py", "synthetic.py", "dummy_models.py")),
    "vllm_specext",
)

# What is wrong comes first, then what users see, then why, and what might be better last.
PARTS = (
    Part(
        "correctness",
        "tests/kernels on the GPU",
        "correctness",
        "rows",
        30,
        240,
        (HERE + "correctness.py", HERE + "pytest_log.py", "tests/kernels", "vllm_specext/kernels", "vllm_specext/tree"),
        is_timed=False,
    ),
    *(
        Part(
            name,
            f"tokens beside those of plain decoding, {how}",
            "lossless",
            "rows",
            90,
            300,
            (HERE + "lossless.py", "vllm_specext", "tests/engine"),
            (which,),
            needs="vllm",
            is_timed=False,
        )
        for name, which, how in (
            ("lossless", "graphs", "GRIFFIN's trees in CUDA graphs"),
            ("lossless_methods", "methods", "other methods in CUDA graphs"),
            ("lossless_hybrid", "hybrid", "targets with recurrent layers or modules of their own in CUDA graphs"),
            ("lossless_latent", "latent", "targets with latent attention (MLA) in CUDA graphs"),
            ("lossless_eager", "eager", "without graphs"),
        )
    ),
    *(
        Part(
            f"engine:{name}",
            f"steps of vLLM, {name}",
            "engine",
            "rows",
            30,
            150,
            ENGINE,
            (name,),
            needs="vllm",
            starts_slowly=True,
        )
        for name in METHODS
    ),
    Part("bandwidth", "what the GPU copies, reads and multiplies", "ceilings", "rows", 10, 60, MEASURING),
    Part(
        "tree_attention",
        "tree attention beside FlashAttention, FlashInfer, xformers and SDPA",
        "attention",
        "rows",
        20,
        180,
        (*ATTENTION, HERE + "attention_peers.py"),
    ),
    Part(
        "latent_attention",
        "tree attention over latent caches (MLA) beside FlashAttention",
        "latent_attention",
        "rows",
        20,
        90,
        (*ATTENTION, HERE + "latent_attention.py"),
    ),
    Part(
        "compaction",
        "KV compaction of 32 layers",
        "small_kernels",
        "compaction_rows",
        15,
        60,
        (*SMALL, _kernel("kv_compaction")),
    ),
    Part(
        "small_kernels",
        "most likely tokens, slots, walks, layouts, expansion and gather beside torch",
        "small_kernels",
        "rows",
        15,
        90,
        (
            *SMALL,
            *map(_kernel, ("best_tokens", "kv_slots", "kv_gather", "tree_walk", "tree_layout", "tree_expansion")),
            "vllm_specext/tree",
        ),
    ),
    Part("tgf", "token-guided fusion beside cuBLAS and torch.compile", "fusion", "rows", 20, 120, FUSION),
    Part("attention_tiles", "other tiles of tree attention", "attention", "tile_rows", 30, 200, ATTENTION),
    Part("tgf_tiles", "other tiles of token-guided fusion", "fusion", "tile_rows", 30, 200, FUSION),
)


def chosen(names: list[str]) -> list[Part]:
    """All parts without ``names``; ``engine`` stands for all ``engine:...``. ``ValueError`` names what is unknown."""
    for name in names:
        if not any(part.name.split(":")[0] == name or part.name == name for part in PARTS):
            known = ", ".join(part.name for part in PARTS)
            raise ValueError(f"there is no part {name!r}; the parts are {known}, and engine for all that begin so.")
    return [part for part in PARTS if not names or part.name in names or part.name.split(":")[0] in names]
