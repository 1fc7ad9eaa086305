"""MoA's training from end to end in small, and the drafters that it begins with."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.unit.moa_acceptance import measure_moa_acceptance
from tests.unit.moa_drafters import untrained
from tests.unit.tiny_llama import random_rows, tiny_llama
from vllm_specext.methods.moa.checkpoint import read_shape, read_tensors
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.training.acceptance import greedy_continuations
from vllm_specext.training.moa.target import TargetStateReader, last_target_layers
from vllm_specext.training.moa.train import MoABatch, MoATraining, RowsInBlocks, train_moa
from vllm_specext.training.run import Run
from vllm_specext.training.step import Progress, Share


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(3)


def small_recipe(**changes: Any) -> MoATraining:
    defaults = {"steps": 70, "decay_steps": 70, "learning_rate": 1e-2, "warmup_steps": 3, "drafted": (3, 5)}
    return MoATraining(**{**defaults, "bfloat16": False, "optimizer": "muon", **changes})


def run_training(
    target: LlamaForCausalLM, out: Path, recipe: MoATraining, state: Path | None = None, **changes: Any
) -> tuple[MoADrafter, list]:
    model = untrained(target, **changes)
    used = model.shape.target_layer_inference
    layers = last_target_layers(target, used) if used else None
    rows = greedy_continuations(target, random_rows(24, 8), 16)
    source = TargetStateReader(target, list(rows), 8, 0, used)
    return model, train_moa(model, target.lm_head.weight, layers, source, out, recipe, run=Run(state))


@pytest.mark.parametrize("changes", [{}, {"target_layer_inference": 1}], ids=str)
def test_training_learns_and_writes_a_checkpoint(target: LlamaForCausalLM, tmp_path: Path, changes: dict) -> None:
    own = greedy_continuations(target, random_rows(24, 8), 16)
    before = measure_moa_acceptance(untrained(target, **changes), target, own, 8)
    model, log = run_training(target, tmp_path, small_recipe(), **changes)
    after = measure_moa_acceptance(model, target, own, 8)
    assert after.tokens_per_verification > before.tokens_per_verification + 0.3
    assert log[-1]["token"] < log[0]["token"]
    assert log[-1]["feature"] < log[0]["feature"]
    assert ("entry" in log[0]) == ("target_layer_inference" in changes)
    assert [entry["step"] for entry in log] == [50, 70]
    assert json.loads((tmp_path / "training.json").read_text())["log"] == log
    assert read_shape(tmp_path) == model.shape
    assert model.shape.rope_theta == 30000.0
    assert model.shape.num_target_layers == 3
    written = read_tensors(tmp_path)
    assert all(torch.equal(written[name], tensor) for name, tensor in model.state_dict().items())


def test_processes_share_the_rows_and_blocks_that_one_has_alone(target: LlamaForCausalLM) -> None:
    rows = list(random_rows(24, 20))

    def batches(share: Share) -> list[MoABatch]:
        reader = TargetStateReader(target, rows, 8, 0)
        made = RowsInBlocks(reader, small_recipe(), torch.Generator().manual_seed(0))
        return [made.next(Progress(1, 20, 0.3), share) for _ in range(4)]

    shares = (batches(Share(process, 2)) for process in range(2))
    for alone, *parts in zip(batches(Share()), *shares, strict=True):
        assert torch.equal(torch.cat([part.boundaries for part in parts]), alone.boundaries)
        assert torch.equal(torch.cat([part.block_only for part in parts]), alone.block_only)
        together = torch.cat([part.rows.embeddings for part in parts])
        assert torch.equal(together, alone.rows.embeddings)
        assert not torch.equal(parts[0].boundaries, parts[1].boundaries)


def test_the_same_seed_gives_the_same_drafter(target: LlamaForCausalLM, tmp_path: Path) -> None:
    recipe = small_recipe(steps=4)
    first, again = (run_training(target, tmp_path, recipe)[0].state_dict() for _ in range(2))
    other = run_training(target, tmp_path, replace(recipe, seed=1))[0].state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["Ekv2E.weight"], other["Ekv2E.weight"])


@pytest.fixture(scope="module")
def short_training(target: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    recipe = small_recipe(steps=5)
    return run_training(target, tmp_path_factory.mktemp("short"), recipe)[0].state_dict()


@pytest.mark.parametrize(
    "changes",
    [
        {"staircase": 0.0},
        {"clip_norm": 1e-9},
        {"drafted": (6, 6)},
        {"count_boundaries": False},
        {"warmup_steps": 1},
        {"decay_steps": 4},
        {"muon_factor": 1.0},
        {"optimizer": "adamw"},
        {"weight_decay": 0.1},
        {"bfloat16": True},
    ],
    ids=str,
)
def test_every_setting_of_the_recipe_takes_part(
    target: LlamaForCausalLM, tmp_path: Path, short_training: dict[str, Tensor], changes: dict
) -> None:
    other = run_training(target, tmp_path, small_recipe(steps=5, **changes))[0].state_dict()
    assert any(not torch.equal(other[name], tensor) for name, tensor in short_training.items())


def test_an_interrupted_training_goes_on_where_it_was(
    target: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, state = small_recipe(steps=60, decay_steps=60), tmp_path / "state.pt"
    rates = []
    step_of = torch.optim.AdamW.step

    def step(optimizer: torch.optim.AdamW) -> None:
        if len(rates) == 55:
            raise KeyboardInterrupt
        rates.append(optimizer.param_groups[0]["lr"])
        step_of(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(KeyboardInterrupt):
        run_training(target, tmp_path, recipe, state)
    rates.clear()
    _, log = run_training(target, tmp_path, recipe, state)
    assert [entry["step"] for entry in log] == [50, 60]
    assert log[1]["token"] < log[0]["token"]
    assert len(rates) == 10
    # 60 steps, 3 of them warm-up, from 1e-2 to 3e-5: the 51st is where 10 of 57 are left.
    assert rates[0] == pytest.approx(3e-5 + (1e-2 - 3e-5) * 10 / 57)


def test_a_training_shorter_than_its_warm_up_reaches_the_learning_rate(
    target: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []
    step_of = torch.optim.AdamW.step

    def step(optimizer: torch.optim.AdamW) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        step_of(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    run_training(target, tmp_path, small_recipe(steps=4, warmup_steps=50))
    assert rates == pytest.approx([2.5e-3, 5e-3, 7.5e-3, 1e-2])


def test_normal_norms_reproduce_the_official_initialisation(target: LlamaForCausalLM) -> None:
    for kind in ("ones", "normal"):
        model = untrained(target, norm_weights=kind)
        norm = model.cross_attention.input_layernorm.weight
        assert (norm == 1).all() == (kind == "ones")
        assert abs(norm.mean().item() - (kind == "ones")) < 0.02
        assert model.Ekv2E.bias.abs().max() == 0
        assert model.self_attention.mlp.up_proj.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_widths_of_an_untrained_drafter_follow_the_target(target: LlamaForCausalLM) -> None:
    shape = untrained(target, target_layer_inference=1).shape
    assert shape.kv_width == 2 * 2 * 8
    assert shape.layer_self_attention is not None
    assert shape.layer_self_attention.head_dim == 8
    assert shape.self_attention.heads == shape.layer_self_attention.heads == 4
    assert untrained(target, with_lsa=False).shape.layer_self_attention is None


def test_heads_that_do_not_divide_the_keys_and_values_get_the_next_smaller_even_size() -> None:
    """As in Qwen2.5 0.5B, which has 14 heads and 256 keys and values in a layer."""
    sizes = {"hidden_size": 56, "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64}
    config = LlamaConfig(**sizes, vocab_size=9, intermediate_size=8, num_hidden_layers=1)
    model = untrained(LlamaForCausalLM(config), lsa_kv_heads=7)
    assert model.shape.kv_width == 256
    assert model.layer_self_attention.self_attn.head_dim == 18
    assert model.memory(torch.randn(1, 3, 1, 256)).shape == (1, 3, 56)
