"""One engine start per configuration: engines run in their own process and their results are kept for the session, for
all workers."""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forks
from tests.engine.workload import DRAFT_VOCABULARY, DRAFTS, EAGLE3, GRIFFIN, MOA, TARGET, requests

Result = dict[str, Any]


def cut(asked: list[dict[str, Any]], most: int = 16) -> list[dict[str, Any]]:
    """The same requests, which end sooner."""
    rows = [one["sampling"] | {"max_tokens": min(most, one["sampling"]["max_tokens"])} for one in asked]
    return [one | {"sampling": sampling} for one, sampling in zip(asked, rows, strict=True)]


_ASKED = requests(20)
ROUND = _ASKED[:-3] + cut(_ASKED[-3:])
"""The last that begin are not the last that end: a batch is full nearly to the end."""
AGAIN = [*cut(ROUND[:1]), ROUND[1], *cut(ROUND[2:4])]
"""Asked a second time, when the prefix cache has their blocks. One of them is alone at last."""

ROOMY: dict[str, Any] = {
    "model": str(TARGET),
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 8,
    "block_size": 32,
    "max_num_batched_tokens": 1024,  # no round needs more, and an engine measures a step of so many at its start
    "kv_cache_memory_bytes": 128 << 20,
    "enable_prefix_caching": True,
}
CHAIN: dict[str, Any] = {
    "method": "griffin",
    "model": str(GRIFFIN),
    "num_speculative_tokens": DRAFTS,
    "tree_top_k": 1,
    "adaptive_drafts": False,
}


def tree(nodes: int, top_k: int, schedule: list[list[int]] | None = None) -> dict[str, Any]:
    """Trees of ``nodes`` at any load, unless there is a ``schedule``."""
    schedule = schedule or [[1, ROOMY["max_num_seqs"], nodes]]
    own = {"num_speculative_tokens": nodes, "tree_top_k": top_k, "num_speculative_tokens_per_batch_size": schedule}
    return {"speculative_config": CHAIN | own}


def moa(nodes: int, top_k: int, **own: Any) -> dict[str, Any]:
    """The same for MoA; a chain of ``nodes`` where ``top_k`` is 1."""
    return of_method("moa", MOA, nodes, top_k, **own)


def eagle3(nodes: int, top_k: int, **own: Any) -> dict[str, Any]:
    """The same for EAGLE-3."""
    return of_method("eagle3-tree", EAGLE3, nodes, top_k, **own)


def of_method(method: str, drafter: Path, nodes: int, top_k: int, **own: Any) -> dict[str, Any]:
    like = tree(nodes, top_k)["speculative_config"]
    return {"speculative_config": like | {"method": method, "model": str(drafter)} | own}


def any_sizes(config: dict[str, Any]) -> dict[str, Any]:
    """``config``, of one of the above, where the scheduler chooses how much is drafted."""
    keys = {key: value for key, value in config["speculative_config"].items() if "per_batch" not in key}
    return config | {"speculative_config": keys | {"adaptive_drafts": True, "keep_step_costs": False}}


def small(config: dict[str, Any], tokens: int = 256) -> dict[str, Any]:
    """``config``, of one of the above, with a drafter that scores so many ``tokens``."""
    own = {"draft_vocab_file": str(DRAFT_VOCABULARY), "draft_vocab_size": tokens}
    return {"speculative_config": config["speculative_config"] | own}


# 12 layers and the drafter's one, 2 heads of 64, float32: 32 tokens take 13 * 2 * 2 * 64 * 4 * 32 bytes. Eight requests
# of up to 330 tokens do not fit into 24 such blocks.
TIGHT: dict[str, Any] = {"max_num_batched_tokens": 48, "num_gpu_blocks_override": 22}
# Neither do trees of all eight into the budget of a step.
TIGHT_FOR_TREES: dict[str, Any] = {"max_num_batched_tokens": 96, "num_gpu_blocks_override": 17}


class Engines:
    """Runs specifications of ``runner.py``; the same one only once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, llm: dict[str, Any], *, v2: bool = True, **switches: Any) -> Result:
        spec: dict[str, Any] = {"rounds": [ROUND, AGAIN], "llm": ROOMY | llm} | switches
        spec |= {"measure_memory": not switches}
        text = json.dumps(spec, sort_keys=True)
        stem = self.folder / hashlib.sha256(f"{v2} {text}".encode()).hexdigest()[:24]
        out = stem.with_suffix(".json")
        with stem.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may ask for the same
            if not out.exists():
                stem.with_suffix(".spec").write_text(text)
                self._run(stem, v2, spawns=bool({"tensor_parallel_size", "ray"} & (spec | spec["llm"]).keys()))
        result: Result = json.loads(out.read_text())
        return result

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """A folder that ``make`` fills once, so that engines with a model in it are the same for all files."""
        folder = self.folder / name
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                part = folder.with_suffix(".part")
                part.mkdir()
                make(part)
                part.rename(folder)
        return folder

    def _run(self, stem: Path, v2: bool, spawns: bool) -> None:
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        if v2:  # plain decoding on the runner that our methods use: its seeded noise is the same
            environment["VLLM_USE_V2_MODEL_RUNNER"] = "1"
        files = str(stem.with_suffix(".spec")), str(stem.with_suffix(".json"))
        if spawns or torch.cuda.is_available():
            done = subprocess.run(
                [sys.executable, str(Path(__file__).with_name("runner.py")), *files],
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        else:
            done = forks.run(
                "tests.engine.runner:main",
                *files,
                environment=environment,
                folder=Path.cwd(),
                streams=stem,
                seconds=SECONDS,
            )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


SECONDS = 1500


def run_apart(module: str, files: list[Path], streams: Path, spawns: bool = False) -> None:
    """Call ``main`` of ``module`` with ``files`` in a process of its own, which finds vLLM imported unless it is one
    that ``spawns`` others. What it writes goes to files whose names begin with ``streams``."""
    environment, arguments = os.environ | {"HF_HUB_OFFLINE": "1"}, [str(file) for file in files]
    if torch.cuda.is_available() or spawns:
        command = [sys.executable, "-m", module, *arguments]
        how: dict[str, Any] = {"env": environment, "cwd": forks.ROOT, "timeout": SECONDS}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    else:
        function = f"{module}:main"
        done = forks.run(
            function, *arguments, environment=environment, folder=Path.cwd(), streams=streams, seconds=SECONDS
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Result]:
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "engines"
    folder.mkdir(exist_ok=True)
    return Engines(folder)
