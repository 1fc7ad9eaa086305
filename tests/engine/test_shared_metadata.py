"""A drafter that caches as its target does shares vLLM's attention metadata with it, and drafts as well as any other.

What it computes never shows in the output, so the bundled drafter is run with the bundled target, which has as many key
heads, and with the same target that has each of its key heads twice: equal results, but a cache unlike the drafter's.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.engine.conftest import Result, eagle3, tree
from tests.engine.test_lossless import differing
from tests.engine.workload import TARGET

HEAD = 64


def with_each_key_head_twice(folder: Path) -> Path:
    shutil.copytree(TARGET, folder)
    tensors = load_file(TARGET / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            tensors[name] = tensor.unflatten(0, (-1, HEAD)).repeat_interleave(2, dim=0).flatten(0, 1).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((TARGET / "config.json").read_text())
    config["num_key_value_heads"] *= 2
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def key_heads(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text())
    config |= config.get("transformer_layer_config", {})  # of a checkpoint in the layout of speculators
    return int(config["num_key_value_heads"])


@pytest.mark.extended
@pytest.mark.parametrize("drafter", [tree(24, 4), eagle3(24, 4)], ids=["griffin", "eagle3"])
def test_a_drafter_that_caches_as_its_target_does_drafts_as_well_as_with_another(
    engines: Callable[..., Result], tmp_path: Path, drafter: dict[str, Any]
) -> None:
    """Prompts come in small pieces, so that many steps have some of them beside trees: there the drafter's first pass
    takes the target's metadata."""
    steps = {"max_num_batched_tokens": 206, "kv_cache_memory_bytes": 256 << 20}
    assert key_heads(Path(drafter["speculative_config"]["model"])) == key_heads(TARGET)
    alike = engines(drafter | steps)
    other = engines(drafter | steps | {"model": str(with_each_key_head_twice(tmp_path / "target"))})
    assert differing(alike, other) == []
    drafts, accepted = (
        [result["counters"][f"vllm:spec_decode_num_{what}"] for result in (alike, other)]
        for what in ("drafts", "accepted_tokens")
    )
    assert accepted[0] > 200
    assert accepted[0] / drafts[0] == pytest.approx(accepted[1] / drafts[1], rel=0.002)
