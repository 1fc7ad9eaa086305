"""The drafter of vLLM layers computes what the plain torch drafter computes, on the rows of a real step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.conftest import CHAIN, Result
from tests.engine.workload import DRAFTS, GRIFFIN, requests
from vllm_specext.methods.griffin.checkpoint import read_shape, read_tensors
from vllm_specext.methods.griffin.model import GriffinDrafter


@pytest.fixture(scope="module")
def passes(engines: Callable[..., Result], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    """The drafter's passes for the first draft of one request: the prompt's rows, then one row per further drafted
    token."""
    path = tmp_path_factory.mktemp("record") / "passes.pt"
    request: dict[str, Any] = requests(3)[2]
    sampling = {"temperature": 0.0, "max_tokens": 1 + DRAFTS, "ignore_eos": True}
    engines({"speculative_config": CHAIN}, rounds=[[{"ids": request["ids"], "sampling": sampling}]], record=str(path))
    recorded: list[dict[str, Tensor]] = torch.load(path, weights_only=True)
    return recorded[:DRAFTS]


def reference(tensors: dict[str, Tensor]) -> GriffinDrafter:
    drafter = GriffinDrafter(read_shape(GRIFFIN))
    drafter.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return drafter.eval()


@torch.no_grad()
def largest_difference(drafter: GriffinDrafter, passes: list[dict[str, Tensor]]) -> float:
    """Replays the passes on ``drafter`` with its own keys and values."""
    past, largest = None, 0.0
    for one in passes:
        rows = one["ids"].numel()
        before = 0 if past is None else past[0].shape[2]
        mask = torch.ones(rows, before + rows, dtype=torch.bool).tril(diagonal=before)[None, None]
        predict, regress, past = drafter(
            one["ids"].long()[None], one["features"][None], one["positions"][None], mask, past
        )
        for ours, theirs in ((predict, one["predict"]), (regress, one["regress"])):
            largest = max(largest, float((ours[0] - theirs).abs().max()))
    return largest


def test_serving_model_matches_the_plain_model_over_a_whole_draft(passes: list[dict[str, Tensor]]) -> None:
    assert [one["ids"].numel() for one in passes[1:]] == [1] * (DRAFTS - 1)
    assert passes[0]["ids"].numel() > 1
    assert largest_difference(reference(read_tensors(GRIFFIN)), passes) < 1e-4


def test_swapped_heads_of_the_down_projection_are_noticed(passes: list[dict[str, Tensor]]) -> None:
    tensors = read_tensors(GRIFFIN)
    name = "layers.0.mlp.down_proj.weight"
    tensors[name] = torch.cat(tensors[name].chunk(2)[::-1])
    assert largest_difference(reference(tensors), passes) > 1e-2
