"""GRIFFIN's training against the official code's numbers, against step-by-step drafting, and end to end in small."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.oracle import load, shape_of
from tests.unit.tiny_llama import tiny_llama
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.checkpoint import read_shape, read_tensors
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training import acceptance
from vllm_specext.training.acceptance import greedy_continuations, measure_acceptance
from vllm_specext.training.features import Batch, Rows, endless_batches, make_batch
from vllm_specext.training.features import target_rows as features_of
from vllm_specext.training.griffin_losses import AlignmentMask, TargetDistribution, pass_losses
from vllm_specext.training.griffin_passes import simulate_chains, training_passes
from vllm_specext.training.train_griffin import Recipe, new_drafter, step_losses, train


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    return load()["train"][0]


@pytest.fixture
def drafter(oracle: dict[str, Any]) -> GriffinDrafter:
    model = GriffinDrafter(shape_of(oracle["config"]))
    model.load_state_dict(oracle["state_dict"])
    model.embed_tokens.requires_grad_(False)
    return model


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(2)


def random_rows(count: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 50, (count, length), generator=torch.Generator().manual_seed(seed))


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


# --- the official training code's numbers ---------------------------------------------------------------------------


def run_oracle_step(drafter: GriffinDrafter, oracle: dict[str, Any], **changes: Any) -> dict[str, list]:
    """All passes with the masking of the official code, backward included."""
    head = oracle["head_weight"]
    options = {"shift": "code", "top_k": oracle["topk_train"], "masked_score": "zero", **changes}
    mask = AlignmentMask(oracle["input_ids"], oracle["base_mask"], options["top_k"], options["shift"])
    target = TargetDistribution.from_logits(oracle["target"] @ head.T)
    seen: dict[str, list] = {"predict": [], "regress": [], "masks": [], "losses": []}
    passes = training_passes(
        drafter, oracle["input_ids"], oracle["hidden_states"], oracle["n_pass"], options["masked_score"]
    )
    total = torch.zeros(())
    for predict, regress in passes:
        logits = predict @ head.T
        losses = pass_losses(regress, logits, oracle["target"], target, mask.current())
        seen["masks"].append(mask.current())
        mask.update(logits)
        for name, value in (("predict", predict), ("regress", regress), ("losses", losses)):
            seen[name].append(value)
        total = total + losses.total(1.0, 0.1, 0.5)
    total.backward()
    return seen


def test_every_pass_equals_the_official_code(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    seen = run_oracle_step(drafter, oracle)
    for n in range(oracle["n_pass"]):
        for name in ("predict", "regress"):
            expected = oracle[name][n]
            # Features reach 85, and single ones near zero are sums of large terms.
            assert (seen[name][n] - expected).abs().max() < 1e-5 * expected.abs().max()


def test_loss_masks_equal_the_official_code(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    seen = run_oracle_step(drafter, oracle)
    for n in range(oracle["n_pass"]):
        assert torch.equal(seen["masks"][n], oracle["terms"][n]["mask_used"])


def test_losses_equal_the_official_code(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    seen = run_oracle_step(drafter, oracle)
    for losses, terms, total in zip(seen["losses"], oracle["terms"], oracle["pass_loss"], strict=True):
        assert losses.feature.item() == pytest.approx(terms["vloss"], rel=1e-4, abs=1e-4)
        assert losses.token.item() == pytest.approx(terms["ploss"], rel=1e-4, abs=1e-4)
        assert losses.top_k.item() == pytest.approx(terms["topk_loss"], rel=1e-4, abs=1e-4)
        assert losses.total(1.0, 0.1, 0.5).item() == pytest.approx(total, rel=1e-4, abs=1e-4)


def test_gradients_equal_the_official_code(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    run_oracle_step(drafter, oracle)
    actual = {name: p.grad for name, p in drafter.named_parameters() if p.requires_grad}
    assert actual.keys() == oracle["grads"].keys()
    for name, expected in oracle["grads"].items():
        assert_same(actual[name], expected)


def test_the_papers_mask_index_gives_other_masks(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    masks = run_oracle_step(drafter, oracle, shift="paper")["masks"]
    assert torch.equal(masks[0], oracle["terms"][0]["mask_used"])
    assert not torch.equal(masks[1], oracle["terms"][1]["mask_used"])


def test_another_top_k_gives_other_masks(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    masks = run_oracle_step(drafter, oracle, top_k=8)["masks"]
    assert not torch.equal(masks[1], oracle["terms"][1]["mask_used"])


def test_the_ordinary_softmax_gives_other_features(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    seen = run_oracle_step(drafter, oracle, masked_score="-inf")
    assert not torch.allclose(seen["predict"][0], oracle["predict"][0], rtol=1e-4, atol=1e-4)


# --- masks by their definition --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", ["code", "paper"])
def test_a_position_counts_in_pass_n_when_the_last_tokens_were_all_hits(shift: Any) -> None:
    """Pass n needs hits of pass j at n - 1 - j positions before, for the paper's index at one more."""
    generator = torch.Generator().manual_seed(1)
    length, passes = 40, 4
    input_ids = torch.randint(0, 8, (2, length), generator=generator)
    all_logits = torch.randn(passes, 2, length, 8, generator=generator)
    mask = AlignmentMask(input_ids, torch.ones_like(input_ids), top_k=5, shift=shift)
    counted = 0
    for n in range(1, passes + 1):
        current = mask.current()
        for b in range(2):
            for s in range(passes, length - 1):
                hits = []
                for j in range(1, n):
                    at = s - (n - 1 - j) - (shift == "paper")
                    hits.append(input_ids[b, at + 1] in all_logits[j - 1, b, at].topk(5).indices)
                assert bool(current[b, s]) == all(hits)
                counted += all(hits) and n == passes
        mask.update(all_logits[n - 1])
    assert counted > 0


# --- passes over a sequence against drafting step by step -----------------------------------------------------------


def draft_steps(model: GriffinDrafter, tokens: Tensor, features: Tensor, start: int, steps: int) -> list[tuple]:
    """Prefill inputs 0..start, then feed back the regress feature with ``tokens``: predict and regress of each step."""
    causal = torch.ones(start + 1, start + 1, dtype=torch.bool).tril()[None, None]
    ids, positions = tokens[:, : start + 1], torch.arange(start + 1)[None]
    predict, regress, past = model(ids, features[:, : start + 1], positions, causal)
    outputs = [(predict[:, -1], regress[:, -1])]
    for step in range(1, steps):
        ids = tokens[:, start + step, None] if start + step < tokens.shape[1] else outputs[-1][0].argmax(-1)[:, None]
        mask = torch.ones(1, 1, 1, start + step + 1, dtype=torch.bool)
        predict, regress, past = model(ids, outputs[-1][1][:, None], torch.tensor([[start + step]]), mask, past)
        outputs.append((predict[:, -1], regress[:, -1]))
    return outputs


@torch.no_grad()
def test_a_later_pass_is_a_later_step_of_a_chain(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    tokens, features = oracle["input_ids"], oracle["hidden_states"]
    length, passes = tokens.shape[1], 4
    outputs = list(training_passes(drafter, tokens, features, passes))
    for start in (0, 1, 5, length - passes):
        for n, (predict, regress) in enumerate(draft_steps(drafter, tokens, features, start, passes)):
            assert_same(outputs[n][0][:, start + n], predict)
            assert_same(outputs[n][1][:, start + n], regress)


@torch.no_grad()
def test_simulated_chains_are_those_of_step_by_step_drafting(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    tokens, features, head = oracle["input_ids"], oracle["hidden_states"], oracle["head_weight"]
    chains = simulate_chains(drafter, head, tokens, features, 4)
    for start in (0, 3, tokens.shape[1] - 1):
        known = tokens[:, : start + 1]
        for step in range(4):
            predict, _ = draft_steps(drafter, known, features, start, step + 1)[-1]
            drafted = (predict @ head.T).argmax(dim=-1)
            assert torch.equal(chains[:, start, step], drafted)
            known = torch.cat((known, drafted[:, None]), dim=1)


def test_gradients_stop_between_passes(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    d = drafter.shape.hidden_size
    _, (predict, _) = training_passes(drafter, oracle["input_ids"], oracle["hidden_states"], 2)
    predict.square().sum().backward()
    gradient = drafter.layer.mlp.down_proj.weight.grad
    assert gradient is not None
    assert gradient[:d].abs().max() > 0
    assert gradient[d:].abs().max() == 0


# --- features -------------------------------------------------------------------------------------------------------


def test_features_are_the_input_of_the_targets_head(target: LlamaForCausalLM) -> None:
    rows = list(random_rows(2, 12))
    found = features_of(target, [rows[0], rows[1][:7]])
    for b, row in enumerate([rows[0], rows[1][:7]]):
        output = target(row[None], output_hidden_states=True)
        assert_same(found.features[b, : len(row)], output.hidden_states[-1][0])
        assert_same(found.features[b, : len(row)] @ target.lm_head.weight.T, output.logits[0])
    assert found.lengths.tolist() == [12, 7]
    assert found.loss_mask.tolist() == [[1] * 12, [1] * 7 + [0] * 5]
    assert found.features[1, 7:].abs().max() == 0


def test_a_batch_pairs_each_feature_with_the_next_token_and_the_next_feature() -> None:
    rows = Rows(
        token_ids=torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]]),
        features=torch.tensor([[[1.0], [2.0], [3.0], [4.0]], [[5.0], [6.0], [7.0], [0.0]]]),
        loss_mask=torch.tensor([[0, 1, 1, 1], [1, 0, 1, 0]]),
        lengths=torch.tensor([4, 3]),
    )
    batch = make_batch(rows, noise=0.0)
    assert batch.input_ids.tolist() == [[2, 3, 4, 0], [6, 7, 0, 0]]
    assert batch.features.squeeze(-1).tolist() == [[1, 2, 3, 4], [5, 6, 7, 0]]
    assert batch.target_features.squeeze(-1).tolist() == [[2, 3, 4, 0], [6, 7, 0, 0]]
    assert batch.loss_mask.tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]


def test_noise_is_bounded_by_the_rows_length_and_spares_targets_and_padding(target: LlamaForCausalLM) -> None:
    rows = features_of(target, [random_rows(1, 40)[0], random_rows(1, 10)[0]])
    clean, noisy = make_batch(rows, noise=0.0), make_batch(rows, noise=2.0, generator=torch.Generator().manual_seed(0))
    difference = (noisy.features - clean.features).abs()
    for b, length in enumerate((40, 10)):
        largest = difference[b, :length].max().item()
        assert 0.9 / length < largest <= 1.001 / length
    assert difference[1, 10:].max() == 0
    assert torch.equal(noisy.target_features, clean.target_features)


def test_endless_batches_visit_every_row_before_any_comes_again(target: LlamaForCausalLM) -> None:
    rows = [row[: 8 + i] for i, row in enumerate(random_rows(6, 14))]
    batches = endless_batches(target, rows, 3, torch.Generator().manual_seed(0))
    for _ in range(3):
        epoch = [next(batches), next(batches)]
        assert sorted(n for batch in epoch for n in batch.lengths.tolist()) == [len(row) for row in rows]
        for batch in epoch:
            for b, length in enumerate(batch.lengths.tolist()):
                expected = features_of(target, [rows[length - 8]]).features[0]
                torch.testing.assert_close(batch.features[b, :length], expected, rtol=1e-2, atol=1e-2)
                assert batch.loss_mask[b].sum() == length


# --- acceptance -----------------------------------------------------------------------------------------------------


def test_greedy_continuations_are_the_targets_argmax(target: LlamaForCausalLM) -> None:
    rows = greedy_continuations(target, random_rows(3, 5), 8, batch=2)
    assert torch.equal(rows[:, :5], random_rows(3, 5))
    best = target(rows).logits.argmax(dim=-1)
    assert torch.equal(rows[:, 5:], best[:, 4:-1])


@pytest.mark.parametrize(
    ("right", "tokens_per_verification", "rates"),
    [(0, 1.0, (0, 0, 0)), (1, 2.0, (1, 0, 0)), (2, 3.0, (1, 1, 0)), (3, 4.0, (1, 1, 1))],
)
def test_acceptance_counts_the_right_beginning_of_a_chain(
    target: LlamaForCausalLM,
    monkeypatch: pytest.MonkeyPatch,
    right: int,
    tokens_per_verification: float,
    rates: tuple[int, ...],
) -> None:
    rows = random_rows(3, 30)

    def chains(model: object, head: Tensor, token_ids: Tensor, features: Tensor, length: int) -> Tensor:
        """Only entry ``right`` is wrong."""
        truth = torch.nn.functional.pad(token_ids, (0, length)).unfold(1, length + 1, 1)[:, :, 1:].clone()
        if right < length:
            truth[:, :, right] = 99
        return truth

    monkeypatch.setattr(acceptance, "simulate_chains", chains)
    found = measure_acceptance(object(), target, rows, prompt_length=6, chain=3, batch=2)  # type: ignore[arg-type]
    assert found.tokens_per_verification == tokens_per_verification
    assert found.rate_at_depth == rates


def test_decoding_visits_only_positions_where_a_verification_starts(
    target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = torch.tensor([[0, 2, 9, 9, 1, 9, 0, 2]])
    monkeypatch.setattr(acceptance, "_accepted", lambda *_: accepted)
    found = measure_acceptance(object(), target, random_rows(1, 12), prompt_length=1)  # type: ignore[arg-type]
    assert found.verifications == 5
    assert found.tokens_per_verification == 1 + (0 + 2 + 1 + 0 + 2) / 5


# --- training from end to end ---------------------------------------------------------------------------------------


def small_recipe(**changes: Any) -> Recipe:
    return Recipe(**{"learning_rates": (3e-3, 1e-3, 1e-3), "warmup_steps": 3, "noise": 1.0, **changes})


def run_training(target: LlamaForCausalLM, out: Path, recipe: Recipe, seed: int = 0) -> tuple[GriffinDrafter, list]:
    model = new_drafter(target, mlp_size=24, heads=4, kv_heads=4, head_dim=8, seed=seed)
    rows = greedy_continuations(target, random_rows(24, 8), 16)
    batches: Iterator[Rows] = endless_batches(target, list(rows), 8, torch.Generator().manual_seed(seed))
    return model, train(model, target.lm_head.weight, batches, out, recipe)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_learns_and_writes_a_checkpoint(target: LlamaForCausalLM, tmp_path: Path, optimizer: Any) -> None:
    own = greedy_continuations(target, random_rows(24, 8), 16)
    untrained = new_drafter(target, mlp_size=24, heads=4, kv_heads=4, head_dim=8)
    before = measure_acceptance(untrained, target, own, 8)
    steps = (150, 60, 60)
    model, log = run_training(target, tmp_path, small_recipe(optimizer=optimizer, steps_per_stage=steps))
    after = measure_acceptance(model, target, own, 8)
    assert after.tokens_per_verification > before.tokens_per_verification + 0.5
    assert log[2]["passes"][0]["token"] < log[0]["passes"][0]["token"]
    assert [len(entry["passes"]) for entry in log] == [1, 1, 1, 2, 2, 3, 3]
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
    assert Recipe().warmup_steps <= min(Recipe().steps_per_stage) / 5


def test_the_first_stage_has_neither_the_top_k_loss_nor_the_unusual_softmax(
    drafter: GriffinDrafter, oracle: dict[str, Any]
) -> None:
    batch = Batch(oracle["input_ids"], oracle["hidden_states"], oracle["target"], oracle["base_mask"])
    head = oracle["head_weight"]
    plain = step_losses(drafter, head, batch, 1, Recipe(top_k_weight=0.0))[0]
    assert torch.equal(step_losses(drafter, head, batch, 1, Recipe(masked_score="zero"))[0], plain)
    released = step_losses(drafter, head, batch, 3, Recipe(masked_score="zero"))[0]
    assert released.item() == pytest.approx(sum(oracle["pass_loss"]), rel=1e-4)
    assert step_losses(drafter, head, batch, 3, Recipe())[0].item() != pytest.approx(released.item(), rel=1e-3)


def test_a_stage_without_a_learning_rate_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"learning_rates has 3 entries, but steps_per_stage has 2"):
        Recipe(steps_per_stage=(10, 10))
