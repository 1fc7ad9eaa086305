"""MoA's training: masks by their definition, losses by hand, simulated chains against drafting step by step, and a
training from end to end in small."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.unit.tiny_llama import VOCABULARY, tiny_llama
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.moa.checkpoint import read_shape, read_tensors
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.methods.moa.target_layers import two_key_sets
from vllm_specext.training.acceptance import greedy_continuations
from vllm_specext.training.moa_acceptance import measure_moa_acceptance, simulate_moa_chains
from vllm_specext.training.moa_blocks import last_verified, memory_mask, sample_boundaries, token_mask
from vllm_specext.training.moa_losses import Losses, moa_losses
from vllm_specext.training.moa_target import endless_rows, last_target_layers, target_rows
from vllm_specext.training.train_moa import Recipe, new_drafter, staircase, step_losses, train


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(3)


def random_rows(count: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (count, length), generator=torch.Generator().manual_seed(seed))


def untrained(target: LlamaForCausalLM, **changes: Any) -> MoADrafter:
    return new_drafter(target, **{"mlp_size": 40, "kv_heads": 2, "lsa_mlp_size": 16, "lsa_kv_heads": 2, **changes})


def random_drafter(target: LlamaForCausalLM, **changes: Any) -> MoADrafter:
    """With weights large enough that what is drafted depends on everything."""
    model = untrained(target, **changes)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.3, generator=generator)
    return model


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_boundaries_are_the_prompt_and_every_so_many_positions() -> None:
    """The specification's example: five prompt tokens, every sixth position a boundary."""
    response = torch.tensor([[0] * 5 + [1] * 9])
    boundaries = sample_boundaries(response, (5, 5), torch.Generator())
    assert last_verified(boundaries)[0].tolist() == [0, 1, 2, 3, 4, 4, 6, 6, 6, 6, 6, 6, 12, 12]


def test_block_lengths_are_uniform_between_both_ends() -> None:
    response = torch.ones(3000, 60)
    boundaries = sample_boundaries(response, (5, 13), torch.Generator().manual_seed(0))
    assert boundaries[:, 0].all()
    drafted = boundaries[:, 1:].float().argmax(dim=1)
    counts = torch.bincount(drafted, minlength=15).tolist()
    assert [length for length, count in enumerate(counts) if count] == list(range(5, 14))
    assert min(counts[5:14]) > 0.75 * 3000 / 9


def test_one_drafted_position_leaves_every_other_as_a_boundary() -> None:
    boundaries = sample_boundaries(torch.ones(1, 7), (1, 1), torch.Generator())
    assert boundaries[0].tolist() == [True, False, True, False, True, False, True]


def test_masks_follow_their_definition() -> None:
    boundaries = torch.rand(4, 17, generator=torch.Generator().manual_seed(0)) < 0.25
    boundaries[:, 0] = True
    block_only = torch.tensor([False, True, False, True])
    last = last_verified(boundaries)
    memory, tokens, both = memory_mask(last)[:, 0], token_mask(last, block_only)[:, 0], two_key_sets(last)[:, 0]
    for b in range(4):
        for i in range(17):
            s = max(j for j in range(i + 1) if boundaries[b, j])
            assert last[b, i] == s
            for j in range(17):
                assert memory[b, i, j] == (j <= s)
                assert tokens[b, i, j] == (j <= i and (not block_only[b] or j >= s + 1 or j == i))
                assert both[b, i, j] == (j <= s)
                assert both[b, i, 17 + j] == (s < j <= i)


def test_the_staircase_ends_with_its_share_of_the_training() -> None:
    recipe = Recipe(steps=100, staircase=0.5)
    assert [staircase(step, recipe) for step in (0, 25, 50, 51, 100)] == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert staircase(1, replace(recipe, staircase=0.0)) == 0.0


# --- losses ----------------------------------------------------------------------------------------------------------


def by_hand(final: Tensor, wanted: Tensor, head: Tensor, mask: Tensor) -> tuple[float, float]:
    token = feature = count = 0.0
    for b, t in mask.nonzero().tolist():
        p = (wanted[b, t] @ head.T).softmax(dim=-1)
        token -= float((p * (final[b, t] @ head.T).log_softmax(dim=-1)).sum())
        difference = (final[b, t] - wanted[b, t]).abs()
        feature += float(torch.where(difference < 1, difference**2 / 2, difference - 0.5).mean())
        count += 1
    return token / count, feature / count


def test_losses_are_those_of_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    final, wanted, entry, wanted_entry = (2 * torch.randn(2, 7, 8, generator=generator) for _ in range(4))
    head = torch.randn(11, 8, generator=generator)
    mask = torch.rand(2, 7, generator=generator) < 0.6
    token, feature = by_hand(final, wanted, head, mask)
    losses = moa_losses(final, wanted, head, mask)
    assert losses.token.item() == pytest.approx(token, rel=1e-4)
    assert losses.feature.item() == pytest.approx(feature, rel=1e-4)
    assert losses.total().item() == pytest.approx(0.1 * token + feature, rel=1e-4)
    _, entry_feature = by_hand(entry, wanted_entry, head, mask)
    losses = moa_losses(final, wanted, head, mask, (entry, wanted_entry))
    assert losses.total().item() == pytest.approx(0.1 * token + 0.5 * feature + 0.5 * entry_feature, rel=1e-4)
    assert losses.terms().tolist() == pytest.approx([token, feature, entry_feature], rel=1e-4)
    everything = moa_losses(final, wanted, head, torch.ones_like(mask))
    assert everything.token.item() != pytest.approx(token, rel=1e-3)


def test_the_token_losses_least_value_is_at_the_targets_distribution() -> None:
    wanted, head = torch.randn(1, 5, 8), torch.randn(11, 8)
    final = wanted.clone().requires_grad_()
    losses = moa_losses(final, wanted, head, torch.ones(1, 5))
    losses.total().backward()
    assert final.grad is not None
    assert final.grad.abs().max() < 1e-6


def losses_of(target: LlamaForCausalLM, model: MoADrafter, boundaries: Tensor, count: bool, used: int = 0) -> Losses:
    rows = random_rows(2, 20)
    seen = target_rows(target, rows, torch.ones_like(rows, dtype=torch.bool), used)
    layers = last_target_layers(target, used) if used else None
    alone = torch.zeros(2, dtype=torch.bool)
    return step_losses(model, target.lm_head.weight, layers, seen, boundaries, alone, count)


def test_boundaries_can_be_left_out_of_the_losses(target: LlamaForCausalLM) -> None:
    model, boundaries = random_drafter(target), sample_boundaries(torch.ones(2, 20), (3, 3), torch.Generator())
    rows = random_rows(2, 20)
    seen = target_rows(target, rows, torch.ones_like(rows, dtype=torch.bool), 0)
    last = last_verified(boundaries)
    features = model(seen.embeddings, seen.kv, token_mask(last, torch.zeros(2, dtype=torch.bool)), memory_mask(last))
    for count, mask in ((True, torch.ones_like(boundaries)), (False, ~boundaries)):
        token, feature = by_hand(features.detach(), seen.features, target.lm_head.weight, mask)
        losses = losses_of(target, model, boundaries, count)
        assert losses.token.item() == pytest.approx(token, rel=1e-4)
        assert losses.feature.item() == pytest.approx(feature, rel=1e-4)


@pytest.mark.parametrize("used", [0, 1])
def test_every_weight_is_trained_and_the_target_is_not(target: LlamaForCausalLM, used: int) -> None:
    model = random_drafter(target, target_layer_inference=used)
    boundaries = sample_boundaries(torch.ones(2, 20), (3, 3), torch.Generator())
    losses_of(target, model, boundaries, True, used).total().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    assert all(p.grad is None for p in target.parameters())


# --- rows ------------------------------------------------------------------------------------------------------------


def test_batches_are_padded_to_the_longest_row_and_padding_does_not_count(target: LlamaForCausalLM) -> None:
    rows = [row[: 8 + i] for i, row in enumerate(random_rows(6, 14))]
    batches = endless_rows(target, rows, 3, torch.Generator().manual_seed(0), 1)
    epoch = list(islice(batches, 2))
    assert sorted(n for batch in epoch for n in batch.response.sum(dim=1).tolist()) == [len(row) for row in rows]
    for batch in epoch:
        assert batch.kv.shape == (3, 13, 3, 32)
        for b, length in enumerate(batch.response.sum(dim=1).tolist()):
            alone = target_rows(target, rows[length - 8][None], torch.ones(1, length, dtype=torch.bool), 1)
            for name in ("embeddings", "kv", "entry", "features"):
                actual, expected = getattr(batch, name)[b, :length], getattr(alone, name)[0]
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_entry_and_features_are_what_the_specification_says(target: LlamaForCausalLM) -> None:
    rows = random_rows(2, 12)
    output = target(rows, output_hidden_states=True)
    for used in (0, 1, 2):
        seen = target_rows(target, rows, torch.ones_like(rows, dtype=torch.bool), used)
        assert torch.equal(seen.entry, output.hidden_states[-1 - used])
        assert torch.equal(seen.features, output.hidden_states[-1])
        assert len(seen.last_kvs) == used


@pytest.mark.parametrize("count", [0, 4])
def test_a_number_of_target_layers_that_there_are_not_is_refused(target: LlamaForCausalLM, count: int) -> None:
    with pytest.raises(ConfigurationError, match=f"target_layer_inference is {count}, but the target has 3 layers"):
        last_target_layers(target, count)


# --- chains ----------------------------------------------------------------------------------------------------------


def chain_step_by_step(model: MoADrafter, target: LlamaForCausalLM, known: Tensor, length: int) -> Tensor:
    """From plain calls without caches: ``known`` ``[B, n + 1]``, of which the first ``n`` are verified."""
    used = model.shape.target_layer_inference
    verified = known.shape[1] - 1
    seen = target_rows(target, known[:, :verified], torch.ones(1), used)
    memory = model.absorb(seen.kv, torch.arange(verified)[None])
    layers = last_target_layers(target, used) if used else None
    for _ in range(length):
        at = torch.arange(known.shape[1])[None]
        hidden, _ = model.read(target.get_input_embeddings()(known), at, (at <= at.T)[None, None])
        new = at[:, verified:]
        feature = model.predict(hidden[:, verified:], new, memory)
        if layers is not None:
            causal = (at <= new.T)[None, None]
            feature, _ = layers(feature, new, causal, seen.last_kvs)
        known = torch.cat((known, target.lm_head(feature[:, -1:]).argmax(dim=-1)), dim=1)
    return known[:, verified + 1 :]


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"target_layer_inference": 2}, {"with_lsa": False}], ids=str)
def test_simulated_chains_are_those_of_step_by_step_drafting(target: LlamaForCausalLM, changes: dict) -> None:
    model = random_drafter(target, **changes)
    rows, used = random_rows(3, 14, seed=5), model.shape.target_layer_inference
    seen = target_rows(target, rows, torch.ones_like(rows, dtype=torch.bool), used)
    layers = last_target_layers(target, used) if used else None
    embedding = target.get_input_embeddings().weight
    chains = simulate_moa_chains(model, embedding, target.lm_head.weight, layers, seen, 4)
    assert chains.shape == (3, 13, 4)
    for start in (0, 1, 6, 12):
        assert torch.equal(chains[:, start], chain_step_by_step(model, target, rows[:, : start + 2], 4))
    assert len({tuple(chain) for chain in chains.flatten(0, 1).tolist()}) > 10


# --- training from end to end ----------------------------------------------------------------------------------------


def small_recipe(**changes: Any) -> Recipe:
    defaults = {"steps": 70, "decay_steps": 70, "learning_rate": 1e-2, "warmup_steps": 3, "drafted": (3, 5)}
    return Recipe(**{**defaults, "bfloat16": False, "optimizer": "muon", **changes})


def run_training(
    target: LlamaForCausalLM, out: Path, recipe: Recipe, resume: Path | None = None, **changes: Any
) -> tuple[MoADrafter, list]:
    model = untrained(target, **changes)
    used = model.shape.target_layer_inference
    layers = last_target_layers(target, used) if used else None
    rows = greedy_continuations(target, random_rows(24, 8), 16)
    batches = endless_rows(target, list(rows), 8, torch.Generator().manual_seed(0), used)
    return model, train(model, target.lm_head.weight, layers, batches, out, recipe, resume=resume)


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
    recipe, state = small_recipe(steps=60, decay_steps=60), tmp_path / "resume.pt"
    short = replace(recipe, steps=50)
    run_training(target, tmp_path, short, state)
    saved = torch.load(state, weights_only=True)
    assert saved["step"] == 50
    rates = []
    step_of = torch.optim.AdamW.step

    def step(optimizer: torch.optim.AdamW) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        step_of(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
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
