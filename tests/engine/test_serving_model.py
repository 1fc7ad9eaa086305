"""The drafter of vLLM layers computes what the plain torch drafter computes, on the rows of a real step."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.conftest import CHAIN, Result
from tests.engine.workload import DRAFTS, GRIFFIN, requests
from vllm_specext.methods.griffin.checkpoint import read_shape, read_tensors
from vllm_specext.methods.griffin.model import GriffinDrafter

Pass = dict[str, Tensor]


def as_released(folder: Path) -> Path:
    """The bundled drafter in the released format, and with biases of queries, keys and values as for Qwen2."""
    tensors = {name: tensor.float() for name, tensor in read_tensors(GRIFFIN).items()}
    generator = torch.Generator().manual_seed(0)
    for x in "qkv":
        rows = tensors[f"layers.0.self_attn.{x}_proj.weight"].shape[0]
        tensors[f"layers.0.self_attn.{x}_proj.bias"] = torch.randn(rows, generator=generator)
    shutil.copy(GRIFFIN / "config.json", folder)
    config = json.loads((folder / "config.json").read_text())
    # Released configurations name the target's architecture.
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}))
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def first_draft(engines: Callable[..., Result], folder: Path, drafter: Path) -> list[Pass]:
    """The drafter's passes for the first draft of one request: the prompt's rows, then one row per further token."""
    path = folder / "passes.pt"
    request: dict[str, Any] = requests(3)[2]
    sampling = {"temperature": 0.0, "max_tokens": 1 + DRAFTS, "ignore_eos": True}
    engines(
        {"speculative_config": CHAIN | {"model": str(drafter)}},
        rounds=[[{"ids": request["ids"], "sampling": sampling}]],
        record=str(path),
    )
    recorded: list[Pass] = torch.load(path, weights_only=True)[:DRAFTS]
    assert recorded[0]["ids"].numel() > 1
    # What nobody reads is not computed.
    assert not recorded[0]["predict"][:-1].any()
    assert [one["ids"].numel() for one in recorded[1:]] == [1] * (DRAFTS - 1)
    return recorded


@pytest.fixture(scope="module")
def passes(engines: Callable[..., Result], tmp_path_factory: pytest.TempPathFactory) -> list[Pass]:
    return first_draft(engines, tmp_path_factory.mktemp("record"), GRIFFIN)


def reference(drafter: Path, **changes: Tensor) -> GriffinDrafter:
    model = GriffinDrafter(read_shape(drafter))
    model.load_state_dict({name: tensor.float() for name, tensor in (read_tensors(drafter) | changes).items()})
    return model.eval()


@torch.no_grad()
def largest_difference(drafter: GriffinDrafter, passes: list[Pass]) -> float:
    """Replays the passes on ``drafter`` with its own keys and values. Of a prompt the last row has features."""
    past, largest = None, 0.0
    for one in passes:
        rows = one["ids"].numel()
        before = 0 if past is None else past[0].shape[2]
        mask = torch.ones(rows, before + rows, dtype=torch.bool).tril(diagonal=before)[None, None]
        inputs = one["ids"].long()[None], one["features"][None], one["positions"][None]
        predict, regress, past = drafter(*inputs, mask, past)
        for ours, theirs in ((predict, one["predict"]), (regress, one["regress"])):
            largest = max(largest, float((ours[0, -1] - theirs[-1]).abs().max()))
    return largest


def test_serving_model_matches_the_plain_model_over_a_whole_draft(passes: list[Pass]) -> None:
    assert largest_difference(reference(GRIFFIN), passes) < 1e-4


def test_a_checkpoint_as_released_and_with_biases_is_served(engines: Callable[..., Result], tmp_path: Path) -> None:
    drafter = as_released(tmp_path)
    passes = first_draft(engines, tmp_path, drafter)
    assert largest_difference(reference(drafter), passes) < 1e-4
    assert largest_difference(reference(GRIFFIN), passes) > 1e-2


def test_swapped_heads_of_the_down_projection_are_noticed(passes: list[Pass]) -> None:
    name = "layers.0.mlp.down_proj.weight"
    swapped = torch.cat(read_tensors(GRIFFIN)[name].chunk(2)[::-1])
    assert largest_difference(reference(GRIFFIN, **{name: swapped}), passes) > 1e-2
