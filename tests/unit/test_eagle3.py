"""EAGLE-3: training passes and simulated chains against drafting step by step."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.tiny_eagle3 import tiny_eagle3
from tests.unit.tiny_llama import VOCABULARY, tiny_llama
from vllm_specext.training.batches import Batch, make_batch
from vllm_specext.training.eagle3.model import Eagle3Drafter
from vllm_specext.training.eagle3.passes import simulate_chains, training_passes
from vllm_specext.training.eagle3.train import Eagle3Step, Eagle3Training
from vllm_specext.training.features import TargetRows
from vllm_specext.training.packed_attention import Layout
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.step import Progress, Share

LENGTH = 9
LAYERS = (1, 3, 5)
"""Of six layers; vLLM's default would read one of them twice."""


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(6)


@pytest.fixture(scope="module")
def drafter(target: LlamaForCausalLM) -> Eagle3Drafter:
    return tiny_eagle3(target).requires_grad_(False)


def step_of(drafter: Eagle3Drafter, target: LlamaForCausalLM, align: int = 0, passes: int | None = None) -> Eagle3Step:
    recipe = Eagle3Training(align=align, passes=passes, bfloat16=True)
    return Eagle3Step(drafter, target.get_input_embeddings().weight, target.lm_head.weight, recipe)


@pytest.mark.parametrize(("passes", "made"), [(None, [1, 2, 3]), (7, [7, 7, 7])])
def test_a_stage_makes_as_many_passes_as_its_number_or_as_are_asked_for(
    drafter: Eagle3Drafter, target: LlamaForCausalLM, passes: int | None, made: list[int]
) -> None:
    step = step_of(drafter, target, passes=passes)
    assert [step.count(Progress(stage, 1, 0.0)) for stage in (1, 2, 3)] == made


def draft(drafter: Eagle3Drafter, embeddings: Tensor, hidden_states: Tensor, position: int, steps: int) -> Tensor:
    """Output ``[d]`` of the last of ``steps`` steps, of which the last reads input ``position`` and the first the
    target's hidden states up to ``position - steps + 1``: one input at a time, with a cache."""
    layer = drafter.layer
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
        added = layer.hidden_norm(own) if drafter.shape.norm_before_residual else own
        output = layer.finish(added + attended)
    return drafter.norm(output)[0, 0]


@pytest.fixture(params=[False, True], ids=["plain", "norm before residual"])
def either(request: pytest.FixtureRequest, drafter: Eagle3Drafter) -> Eagle3Drafter:
    other = Eagle3Drafter(replace(drafter.shape, norm_before_residual=request.param)).requires_grad_(False)
    other.load_state_dict(drafter.state_dict())
    other.layer.hidden_norm.weight.mul_(torch.linspace(0.5, 1.5, 32))
    return other


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_pass_is_a_step_of_drafting_at_every_position(either: Eagle3Drafter, steps: int) -> None:
    drafter = either
    torch.manual_seed(2)
    embeddings, hidden_states = torch.randn(1, LENGTH, 32), torch.randn(1, LENGTH, 96)
    made = list(training_passes(drafter, embeddings, hidden_states, Layout.of([[LENGTH]]), 3))
    for position in range(steps, LENGTH):
        step = draft(drafter, embeddings, hidden_states, position, steps)
        torch.testing.assert_close(made[steps - 1][0, position], step, rtol=1e-4, atol=1e-5)
        if steps > 1:
            assert not torch.allclose(made[0][0, position], step, rtol=1e-2)


def test_a_simulated_chain_is_drafting_step_by_step(target: LlamaForCausalLM, either: Eagle3Drafter) -> None:
    drafter = either
    torch.manual_seed(2)
    embedding, head = target.get_input_embeddings().weight, target.lm_head.weight
    ids, states = torch.randint(0, VOCABULARY, (1, LENGTH)), torch.randn(1, LENGTH, 96)
    chains = simulate_chains(drafter, embedding, head, ids, states, 4)
    assert chains.shape == (1, LENGTH, 4)
    for start in range(LENGTH):
        known = ids[:, : start + 1]
        for depth in range(4):
            # Of the positions after the start the drafter reads its own features, whatever is given here.
            given = torch.cat((states[:, : start + 1], torch.full((1, depth, 96), 9.0)), dim=1)
            output = draft(drafter, embedding[known], given, start + depth, depth + 1)
            token = int((output @ head.T).argmax())
            assert token == int(chains[0, start, depth])
            known = torch.cat((known, torch.tensor([[token]])), dim=1)
    # Each reads what the ones before drafted.
    assert len({tuple(chain) for chain in chains[0].tolist()}) > LENGTH // 2


def batch_of(target: LlamaForCausalLM, rows: list[Tensor], tokens: int) -> Batch:
    source = TargetRows(target, rows, seed=0, layers=LAYERS, kept=False)
    packed = PackedBatches(source, tokens, size=1)
    return make_batch(packed.make(packed.take(Share())))


def test_a_batch_pairs_hidden_states_with_the_next_token_and_the_one_after(target: LlamaForCausalLM) -> None:
    rows = [torch.randint(0, VOCABULARY, (length,)) for length in (LENGTH, LENGTH - 3)]
    batch = batch_of(target, rows, 2 * LENGTH)
    # Of a row the last two outputs predict nothing.
    assert int(batch.counted.sum()) == sum(len(row) - 2 for row in rows)
    (begins,) = batch.layout.begins
    for row in rows:
        (start,) = [at for at in begins if torch.equal(batch.input_ids[0, at : at + len(row) - 1], row[1:])]
        assert torch.equal(batch.next_ids[0, start : start + len(row) - 2], row[2:])
        output = target(row[None], output_hidden_states=True)
        read = torch.cat([output.hidden_states[n] for n in LAYERS], dim=-1)[0]
        assert batch.aux is not None
        given, wanted = batch.aux[0, start : start + len(row)], batch.target_features[0, start : start + len(row) - 1]
        torch.testing.assert_close(given, read, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(target.lm_head(wanted), output.logits[0, 1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("align", [0, 3])
def test_training_lowers_the_loss_of_every_pass(target: LlamaForCausalLM, align: int) -> None:
    torch.manual_seed(3)
    step = step_of(tiny_eagle3(target), target, align)
    batch = batch_of(target, list(torch.randint(0, VOCABULARY, (4, LENGTH))), 4 * LENGTH)
    progress = Progress(stage=3, step=1, done=0.0)
    optimizer = torch.optim.AdamW(step.model.parameters(), lr=1e-2)

    def losses() -> Tensor:
        token, counts = step(batch, progress).terms["token"]
        return token / counts.clamp(min=1)

    before = losses()
    for _ in range(20):
        optimizer.zero_grad()
        step(batch, progress).loss.sum().backward()
        optimizer.step()
    assert (losses() < 0.9 * before)[: 1 if align else 3].all()


def test_aligned_passes_count_where_the_tokens_before_were_among_the_best(target: LlamaForCausalLM) -> None:
    torch.manual_seed(4)
    batch = batch_of(target, list(torch.randint(0, VOCABULARY, (4, LENGTH))), 4 * LENGTH)
    drafter, progress = tiny_eagle3(target), Progress(stage=2, step=1, done=0.0)

    def counted(align: int) -> list[int]:
        found: list[int] = step_of(drafter, target, align)(batch, progress).terms["counted"][0].tolist()
        return found

    embeddings = target.get_input_embeddings()(batch.input_ids)
    assert batch.aux is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, _ = training_passes(drafter, embeddings, batch.aux, batch.layout, 2)
        best = target.lm_head(first).topk(7, dim=-1).indices
    hits = (best == batch.next_ids[..., None]).any(dim=-1)
    every = int(batch.counted.sum())
    assert counted(0) == [every, every]
    assert counted(VOCABULARY) == [every, every]
    assert counted(7) == [every, int((batch.counted & hits).sum())]
    assert 0 < counted(7)[1] < every
