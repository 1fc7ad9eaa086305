"""Output layers of drafters' own, which are trained with them: losses, chains and optimizers."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.griffin_losses import token_loss
from tests.unit.test_eagle3 import batch_of, draft, step_of
from tests.unit.test_head_loss import CHUNK, SCALES, Case, made
from tests.unit.tiny_eagle3 import tiny_eagle3
from tests.unit.tiny_llama import VOCABULARY, tiny_llama
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import TARGET
from vllm_specext.methods.token_counts import write
from vllm_specext.training.eagle3.passes import simulate_chains
from vllm_specext.training.head_loss import Alignment, HeadLosses, HeadWeights, head_losses
from vllm_specext.training.optimization import make_optimizers
from vllm_specext.training.own_head import OwnHead
from vllm_specext.training.pipeline.eagle3 import drafted_tokens
from vllm_specext.training.pipeline.target import read_target
from vllm_specext.training.recipes.eagle3 import Eagle3Recipe
from vllm_specext.training.recipes.named import recipe_of
from vllm_specext.training.step import Progress

SCORED = list(range(3, 50, 2))
LENGTH = 9


class Found(NamedTuple):
    losses: HeadLosses
    gradients: list[Tensor]


def own_head(case: Case, tokens: list[int]) -> OwnHead:
    """Near the target's."""
    weight = case.head[tokens] + 0.3 * torch.randn(len(tokens), case.head.shape[1])
    return OwnHead(weight.requires_grad_(), torch.tensor(tokens))


def chunked(case: Case, own: OwnHead, top_k: int) -> Found:
    alignment = Alignment(case.input_ids.roll(-1, dims=1), case.positions, top_k) if top_k else None
    losses = head_losses(
        case.head, case.features, case.wanted, case.counted, HeadWeights(), alignment, chunk=CHUNK, own=own
    )
    of = torch.autograd.grad(losses.loss @ torch.tensor(SCALES), [own.weight, *case.features])
    return Found(losses, list(of))


def at_once(case: Case, own: OwnHead, top_k: int) -> Found:
    """All logits at once, and torch's gradients."""
    target = case.wanted @ case.head.T
    counted = case.counted & torch.isin(target.argmax(dim=-1), own.tokens)
    probabilities = target[..., own.tokens].softmax(dim=-1)
    runs = torch.ones_like(counted)
    begins, next_ids = case.positions == 0, case.input_ids.roll(-1, dims=1)
    sums, masks = [], []
    for number, features in enumerate(case.features):
        logits = features @ own.weight.T
        masks.append(counted & runs if number and top_k else counted)
        sums.append((token_loss(logits, probabilities) * masks[-1]).sum())
        if top_k:
            hits = (own.tokens[logits.topk(top_k, dim=-1).indices] == next_ids[..., None]).any(dim=-1)
            flat = runs.flatten()
            before = torch.cat((flat[:1], flat[:-1])).view_as(runs) | begins if number else torch.ones_like(runs)
            runs = before & hits
    loss, stacked = torch.stack(sums), torch.stack(masks)
    of = torch.autograd.grad(loss @ torch.tensor(SCALES), [own.weight, *case.features])
    return Found(HeadLosses(loss, loss, loss, stacked), list(of))


@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("tokens", [SCORED, list(range(61))], ids=["some tokens", "all tokens"])
def test_chunks_give_what_all_logits_at_once_give(tokens: list[int], top_k: int) -> None:
    torch.manual_seed(1)
    case = made(61)
    own = own_head(case, tokens)
    ours, expected = chunked(case, own, top_k), at_once(case, own, top_k)
    assert torch.equal(ours.losses.masks, expected.losses.masks)
    torch.testing.assert_close(ours.losses.loss, expected.losses.loss, rtol=1e-5, atol=1e-5)
    for one, other in zip(ours.gradients, expected.gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    # Without it they are others, and what was given is not changed.
    shared = head_losses(case.head, case.features, case.wanted, case.counted, HeadWeights(), chunk=CHUNK)
    assert not torch.allclose(shared.loss, ours.losses.loss, rtol=0.01)
    assert torch.equal(made(61).counted, case.counted)
    learns = len(tokens) / 61 * case.counted.sum() * 0.5
    assert learns < ours.losses.masks[0].sum() <= case.counted.sum()


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(6)


def test_a_simulated_chain_has_tokens_that_are_scored(target: LlamaForCausalLM) -> None:
    """And reads them by their numbers in the target's vocabulary."""
    torch.manual_seed(2)
    drafter = tiny_eagle3(target, own_head=True, tokens=SCORED[:20]).requires_grad_(False)
    own = drafter.own_head()
    assert own is not None
    embedding, other = target.get_input_embeddings().weight, torch.zeros_like(target.lm_head.weight)
    ids, states = torch.randint(0, VOCABULARY, (1, LENGTH)), torch.randn(1, LENGTH, 96)
    chains = simulate_chains(drafter, embedding, other, ids, states, 3)
    assert set(chains.flatten().tolist()) <= set(SCORED[:20])
    for start in range(LENGTH):
        known = ids[:, : start + 1]
        for depth in range(3):
            given = torch.cat((states[:, : start + 1], torch.full((1, depth, 96), 9.0)), dim=1)
            output = draft(drafter, embedding[known], given, start + depth, depth + 1)
            token = int(own.tokens[(output @ own.weight.T).argmax()])
            assert token == int(chains[0, start, depth])
            known = torch.cat((known, torch.tensor([[token]])), dim=1)


def test_it_is_trained_with_the_drafter_by_adamw(target: LlamaForCausalLM) -> None:
    torch.manual_seed(3)
    drafter = tiny_eagle3(target, own_head=True, tokens=list(range(40)))
    assert drafter.lm_head is not None
    step = step_of(drafter, target, 0)
    batch = batch_of(target, list(torch.randint(0, VOCABULARY, (4, LENGTH))), 4 * LENGTH)
    progress = Progress(stage=2, step=1, done=0.0)
    adamw, muon = make_optimizers(drafter, "muon", 1e-2, 0.0, 1.0)
    of_adamw, of_muon = ({p for group in one.param_groups for p in group["params"]} for one in (adamw, muon))
    assert drafter.lm_head.weight in of_adamw
    assert drafter.fc.weight in of_muon
    before, first = drafter.lm_head.weight.detach().clone(), step(batch, progress).loss.sum().detach()
    for _ in range(20):
        for optimizer in (adamw, muon):
            optimizer.zero_grad()
        step(batch, progress).loss.sum().backward()
        for optimizer in (adamw, muon):
            optimizer.step()
    assert step(batch, progress).loss.sum() < 0.9 * first
    assert not torch.allclose(drafter.lm_head.weight, before)
    counted, all_of = step(batch, progress).terms["counted"]
    assert 0 < counted[0] < all_of[0] == batch.counted.sum()


def test_a_recipe_has_both_keys_of_a_vocabulary_or_none() -> None:
    for keys in ({"draft_vocab_size": 20}, {"draft_vocab_file": "ids.json"}):
        with pytest.raises(ConfigurationError, match="draft_vocab_size and draft_vocab_file belong together"):
            recipe_of("eagle3", keys)
    kept = Eagle3Recipe().beginning_with({"draft_vocab_size": 20, "draft_vocab_file": None, "mlp_size": 8})
    assert recipe_of("eagle3", kept.model_dump()) == kept


def test_the_tokens_of_a_new_drafter_are_the_first_of_the_file(tmp_path: Path) -> None:
    target = read_target(str(TARGET), weights=False)
    file = tmp_path / "ids.json"
    write(file, str(TARGET), target.vocab_size, [7, 2, 9, 4], Counter({7: 5, 2: 4, 9: 3, 4: 1}))
    keys = {"draft_vocab_size": 3, "draft_vocab_file": str(file)}
    assert drafted_tokens(target, Eagle3Recipe(**keys)) == [2, 7, 9]
    assert drafted_tokens(target, Eagle3Recipe()) is None
    for changed, expected in (
        ({"draft_vocab_size": 5}, "'draft_vocab_size' is 5, but .* has 4 tokens; expected no more"),
        ({"draft_vocab_file": str(tmp_path / "none")}, "the recipe's key 'draft_vocab_file' is .*, which is no file"),
    ):
        with pytest.raises(ConfigurationError, match=expected):
            drafted_tokens(target, Eagle3Recipe(**keys | changed))
