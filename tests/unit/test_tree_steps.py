"""Which layers' caches a step moves keys and values in."""

from types import SimpleNamespace
from typing import Any

import torch

from vllm_specext.engine.verification import compaction
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.engine.verification.tree_steps import TreeSteps
from vllm_specext.tree.budget import TreeShape


def layer(name: str, shares: str | None = None) -> Any:
    return SimpleNamespace(kv_cache=name, kv_sharing_target_layer_name=shares)


def test_a_cache_that_layers_share_moves_once(monkeypatch: Any) -> None:
    """A second move would read what the first one has overwritten."""
    moved = []
    monkeypatch.setattr(compaction, "caches_of", lambda layers: [layer.kv_cache for layer in layers])
    monkeypatch.setattr(compaction, "compact", lambda caches, source, destination: moved.append(caches))
    steps = TreeSteps(TreeStates(TreeShape(8, 3, 2), 2, 64, torch.device("cpu")))
    steps.use_caches([{"a": layer("a"), "c": layer("c", shares="a")}, {"b": layer("b")}, {"d": layer("d", shares="b")}])
    slots = torch.zeros(1, 4, dtype=torch.int64)
    paths: Any = SimpleNamespace(in_order=False, source=slots, destination=slots)
    steps._compaction(paths, torch.zeros(3, 8, dtype=torch.int64))
    assert moved == [["a"], ["b"]]
    assert [len(group) for group in steps.layers] == [2, 1, 1]  # all of them are compiled for
