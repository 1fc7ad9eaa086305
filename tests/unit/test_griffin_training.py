"""GRIFFIN's training from end to end in small."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.largest_tensor import Largest
from tests.unit.oracle import single, training_case, training_drafter
from tests.unit.tiny_llama import random_rows, tiny_llama
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.checkpoint import GriffinShape, read_shape, read_tensors
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training import head_loss, packed_attention
from vllm_specext.training.acceptance import greedy_continuations
from vllm_specext.training.batches import Batch
from vllm_specext.training.features import TargetRows
from vllm_specext.training.griffin.acceptance import measure_acceptance
from vllm_specext.training.griffin.train import GriffinStep, GriffinTraining, new_griffin_drafter, train_griffin
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.step import Progress


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    return training_case()


@pytest.fixture
def drafter(oracle: dict[str, Any]) -> GriffinDrafter:
    return training_drafter(oracle)


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(2)


def small_recipe(**changes: Any) -> GriffinTraining:
    return GriffinTraining(**{"learning_rates": (3e-3, 1e-3, 1e-3), "warmup_steps": 3, "noise": 1.0, **changes})


def run_training(
    target: LlamaForCausalLM, out: Path, recipe: GriffinTraining, seed: int = 0
) -> tuple[GriffinDrafter, list]:
    model = new_griffin_drafter(target, mlp_size=24, heads=4, kv_heads=4, head_dim=8, seed=seed)
    rows = greedy_continuations(target, random_rows(24, 8), 16)
    packs = PackedBatches(TargetRows(target, list(rows), seed), tokens=4 * 24, size=2)
    return model, train_griffin(model, target.lm_head.weight, packs, out, recipe)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_learns_and_writes_a_checkpoint(target: LlamaForCausalLM, tmp_path: Path, optimizer: Any) -> None:
    own = greedy_continuations(target, random_rows(24, 8), 16)
    untrained = new_griffin_drafter(target, mlp_size=24, heads=4, kv_heads=4, head_dim=8)
    before = measure_acceptance(untrained, target, own, 8)
    steps = (150, 60, 60)
    model, log = run_training(target, tmp_path, small_recipe(optimizer=optimizer, steps_per_stage=steps))
    after = measure_acceptance(model, target, own, 8)
    assert after.tokens_per_verification > before.tokens_per_verification + 0.5
    assert log[2]["token"][0] < log[0]["token"][0]
    for name in ("feature", "token", "top_k", "counted"):
        assert [len(entry[name]) for entry in log] == [1, 1, 1, 2, 2, 3, 3]
    assert [entry["stage"] for entry in log] == [1, 1, 1, 2, 2, 3, 3]
    assert [entry["step"] for entry in log] == [50, 100, 150, 50, 60, 50, 60]
    assert json.loads((tmp_path / "training.json").read_text())["log"] == log
    assert read_shape(tmp_path) == model.shape
    assert model.shape.rope_theta == 30000.0
    written = read_tensors(tmp_path)
    assert torch.equal(written["embed_tokens.weight"], target.get_input_embeddings().weight)
    assert torch.equal(written["fc.fc.weight"], model.state_dict()["fc.fc.weight"])


def test_the_same_seed_gives_the_same_drafter(target: LlamaForCausalLM, tmp_path: Path) -> None:
    recipe = small_recipe(steps_per_stage=(4, 3), learning_rates=(1e-3, 1e-3))
    first, again = (run_training(target, tmp_path, recipe)[0].state_dict() for _ in range(2))
    other = run_training(target, tmp_path, recipe, seed=1)[0].state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.fc.weight"], other["fc.fc.weight"])


def test_a_stage_shorter_than_its_warm_up_reaches_the_learning_rate(
    target: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []
    step_of = torch.optim.AdamW.step

    def step(optimizer: torch.optim.AdamW) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        step_of(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    recipe = small_recipe(steps_per_stage=(4, 2), learning_rates=(1e-3, 5e-4), warmup_steps=2000)
    run_training(target, tmp_path, recipe)
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 2.5e-4, 5e-4])


def test_the_default_warm_up_leaves_most_of_every_stage() -> None:
    assert GriffinTraining().warmup_steps <= min(GriffinTraining().steps_per_stage) / 5


def test_the_first_stage_has_neither_the_top_k_loss_nor_the_unusual_softmax(
    drafter: GriffinDrafter, oracle: dict[str, Any]
) -> None:
    ids, counted = oracle["input_ids"], oracle["base_mask"].bool()
    batch = Batch(single(ids), ids, ids.roll(-1, dims=1), oracle["hidden_states"], oracle["target"], counted)

    def loss(passes: int, **changes: Any) -> Tensor:
        step = GriffinStep(drafter, oracle["head_weight"], GriffinTraining(**changes))
        sums = step(batch, Progress(stage=passes, step=1, done=0.0))
        return (sums.loss / sums.counts.clamp(min=1)).sum()

    assert torch.equal(loss(1, masked_score="zero"), loss(1, top_k_weight=0.0))
    released = loss(3, masked_score="zero")
    assert released.item() == pytest.approx(sum(oracle["pass_loss"]), rel=1e-4)
    assert loss(3).item() != pytest.approx(released.item(), rel=1e-3)


def test_no_tensor_of_a_step_has_all_logits_or_all_scores() -> None:
    """Two packs of 1024 slots, in three passes; a chunk has the logits of 1024 of them."""
    vocabulary, slots, heads, width = 1500, 1024, 4, 16
    sizes = {"vocab_size": vocabulary, "hidden_size": width, "mlp_size": 24, "tgf_size": 24, "qkv_bias": False}
    rest = {"head_dim": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": slots}
    model = GriffinDrafter(GriffinShape(heads=heads, kv_heads=heads, **sizes, **rest))
    features = torch.randn(2, slots, width)
    ids = torch.randint(0, vocabulary, (2, slots))
    batch = Batch(single(ids), ids, ids, features, features, torch.ones_like(ids, dtype=torch.bool))
    step = GriffinStep(model, torch.randn(vocabulary, width), GriffinTraining())
    with Largest() as seen:
        step(batch, Progress(3, 1, 0.0)).loss.sum().backward()
    # A query of the third pass has two keys of its own.
    scores = packed_attention.CHUNK * heads * (slots + 2)
    assert seen.numbers == max(scores, head_loss.CHUNK * vocabulary)
    assert seen.numbers < min(2 * slots * vocabulary, 2 * heads * slots**2)


def test_a_stage_without_a_learning_rate_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"learning_rates has 3 entries, but steps_per_stage has 2"):
        GriffinTraining(steps_per_stage=(10, 10))
