"""One engine start per configuration: engines run in their own process and their results are kept for the session."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.workload import DRAFTS, EAGLE3, GRIFFIN, MOA, TARGET, requests

ROUND = requests(36)
AGAIN = ROUND[:9]
"""Asked a second time, when the prefix cache has their blocks."""

Result = dict[str, Any]

ROOMY: dict[str, Any] = {
    "model": str(TARGET),
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 8,
    "block_size": 32,
    "kv_cache_memory_bytes": 128 << 20,
    "enable_prefix_caching": True,
}
CHAIN: dict[str, Any] = {
    "method": "griffin",
    "model": str(GRIFFIN),
    "num_speculative_tokens": DRAFTS,
    "tree_top_k": 1,
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


# 12 layers and the drafter's one, 2 heads of 64, float32: 32 tokens take 13 * 2 * 2 * 64 * 4 * 32 bytes. Eight requests
# of up to 330 tokens do not fit into 24 such blocks.
TIGHT: dict[str, Any] = {"max_num_batched_tokens": 48, "num_gpu_blocks_override": 24}
# Neither do trees of all eight into the budget of a step.
TIGHT_FOR_TREES: dict[str, Any] = {"max_num_batched_tokens": 96, "num_gpu_blocks_override": 20}


class Engines:
    """Runs specifications of ``runner.py``; the same one only once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[str, Result] = {}

    def __call__(self, llm: dict[str, Any], *, v2: bool = True, **switches: Any) -> Result:
        spec = json.dumps({"rounds": [ROUND, AGAIN]} | {"llm": ROOMY | llm, **switches}, sort_keys=True)
        key = f"{v2} {spec}"
        if key not in self.results:
            self.results[key] = self._run(spec, v2)
        return self.results[key]

    def _run(self, spec: str, v2: bool) -> Result:
        stem = self.folder / str(len(self.results))
        stem.with_suffix(".spec").write_text(spec)
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        if v2:  # plain decoding on the runner that our methods use: its seeded noise is the same
            environment["VLLM_USE_V2_MODEL_RUNNER"] = "1"
        runner = Path(__file__).with_name("runner.py")
        done = subprocess.run(
            [sys.executable, str(runner), str(stem.with_suffix(".spec")), str(stem.with_suffix(".json"))],
            env=environment,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        result: Result = json.loads(stem.with_suffix(".json").read_text())
        return result


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Result]:
    return Engines(tmp_path_factory.mktemp("engines"))
