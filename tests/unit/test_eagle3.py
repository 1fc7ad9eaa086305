"""The peer's training passes against drafting step by step, and its recipe against the GRIFFIN drafter's."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.tiny_llama import VOCABULARY, tiny_llama
from vllm_specext.demo import train_eagle3
from vllm_specext.demo.eagle3 import FILE, Eagle3Drafter, Layer, read_layers
from vllm_specext.demo.train_eagle3 import make_batch, pass_losses
from vllm_specext.measure.bundled import MODELS

LENGTH = 9


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(6)


@pytest.fixture(scope="module")
def drafter(target: LlamaForCausalLM) -> Eagle3Drafter:
    torch.manual_seed(1)
    return Eagle3Drafter(target).requires_grad_(False)


def draft(drafter: Eagle3Drafter, embeddings: Tensor, hidden_states: Tensor, position: int, steps: int) -> Tensor:
    """Output ``[d]`` of the last of ``steps`` steps, of which the last reads input ``position`` and the first the
    target's hidden states up to ``position - steps + 1``: one input at a time, with a cache."""
    (layer,) = drafter.layers
    assert isinstance(layer, Layer)
    past, output = None, None
    hidden = drafter.fc(hidden_states)
    first_own = position - steps + 2
    for s in range(position + 1):
        if s >= first_own:
            assert output is not None
            hidden = hidden.clone()
            hidden[:, s] = output[:, 0]
        own = hidden[:, s : s + 1]
        attended, past = layer.self_attn(
            layer.fuse(own, embeddings[:, s : s + 1]), torch.tensor([[s]]), torch.ones(1, 1, 1, s + 1).bool(), past
        )
        output = layer.finish(own + attended)
    return drafter.norm(output)[0, 0]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_pass_is_a_step_of_drafting_at_every_position(drafter: Eagle3Drafter, steps: int) -> None:
    torch.manual_seed(2)
    embeddings, hidden_states = torch.randn(1, LENGTH, 32), torch.randn(1, LENGTH, 96)
    made = list(drafter.passes(embeddings, hidden_states, 3))
    for position in range(steps, LENGTH):
        step = draft(drafter, embeddings, hidden_states, position, steps)
        torch.testing.assert_close(made[steps - 1][0, position], step, rtol=1e-4, atol=1e-5)
        if steps > 1:
            assert not torch.allclose(made[0][0, position], step, rtol=1e-2)


def test_a_batch_pairs_hidden_states_with_the_next_token_and_the_one_after(target: LlamaForCausalLM) -> None:
    rows = [torch.randint(0, VOCABULARY, (length,)) for length in (LENGTH, LENGTH - 3)]
    batch = make_batch(target, rows)
    assert torch.equal(batch.input_ids[0], rows[0][1:])
    assert batch.counted.sum(dim=1).tolist() == [LENGTH - 1, LENGTH - 4]
    output = target(rows[1][None], output_hidden_states=True)
    read = torch.cat([output.hidden_states[n] for n in read_layers(6)], dim=-1)[0]
    given, probabilities = batch.hidden_states[1, : LENGTH - 4], batch.probabilities[1, : LENGTH - 4]
    wanted = output.logits[0, 1:].softmax(dim=-1)
    # Made in bfloat16.
    assert difference(given, read[:-1]) < 0.05 < 0.5 < difference(given, read[1:])
    assert difference(probabilities, wanted) < 0.1 < 0.5 < difference(probabilities[:-1], wanted[1:])


def difference(given: Tensor, wanted: Tensor) -> float:
    return float((given - wanted).norm() / wanted.norm())


def test_training_lowers_the_loss_of_every_pass(target: LlamaForCausalLM) -> None:
    torch.manual_seed(3)
    drafter = Eagle3Drafter(target)
    batch = make_batch(target, list(torch.randint(0, VOCABULARY, (4, LENGTH))))
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-2)
    before = pass_losses(drafter, target, batch, 3)
    for _ in range(20):
        optimizer.zero_grad()
        pass_losses(drafter, target, batch, 3).sum().backward()
        optimizer.step()
    assert (pass_losses(drafter, target, batch, 3) < 0.9 * before).all()


def test_the_file_has_no_weights_of_the_target(drafter: Eagle3Drafter, tmp_path: Path) -> None:
    drafter.save(tmp_path)
    names = load_file(tmp_path / FILE)
    assert names.keys() == drafter.state_dict().keys()
    assert not [name for name in names if "embed" in name or "lm_head" in name]


def test_the_bundled_drafter_was_trained_for_as_long_as_the_griffin_drafter_and_at_its_rates() -> None:
    recipe = json.loads((MODELS / "griffin" / "training.json").read_text())["recipe"]
    assert recipe["steps_per_stage"] == list(train_eagle3.STEPS)
    assert recipe["learning_rates"] == pytest.approx(train_eagle3.RATES)
    assert recipe["optimizer"] == "muon"
    for name in ("warmup_steps", "weight_decay", "clip_value", "muon_factor"):
        assert recipe[name] == getattr(train_eagle3, name.upper())
    log = json.loads((MODELS / "eagle3" / "training.json").read_text())["log"]
    last = {row["stage"]: (row["step"], len(row["token"])) for row in log}
    assert last == {stage: (steps, stage) for stage, steps in enumerate(recipe["steps_per_stage"], start=1)}
