"""DSpark's training, against its definition, by one block and one row of text at a time."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.unit.test_dflash_training import LENGTHS, TOKENS, of_blocks, row_of
from tests.unit.tiny_dflash import tiny_dspark
from tests.unit.tiny_llama import random_rows, tiny_llama
from vllm_specext.methods.block.model import blocks
from vllm_specext.training.block import dspark_loss
from vllm_specext.training.block.blocks import BlockBatch, make_blocks
from vllm_specext.training.block.dspark import DSparkStep, DSparkTraining
from vllm_specext.training.block.dspark_loss import Drafted, LossWeights, dspark_losses
from vllm_specext.training.block.ends import Ends
from vllm_specext.training.block.simulation import simulate_dspark
from vllm_specext.training.logits import Logits
from vllm_specext.training.optimization import make_optimizers
from vllm_specext.training.packs import Packed, pack
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.step import Progress, Sums

WIDTH, ANCHORS, SEED, DECAY = 5, 4, 3, 2.0
TARGET = tiny_llama(6)
DRAFTER = tiny_dspark(TARGET, WIDTH)
SHAPE = DRAFTER.shape
EMBEDDING, HEAD = TARGET.get_input_embeddings().weight, TARGET.lm_head.weight
LOGITS = Logits(scale=0.5)
ENDS = Ends(EMBEDDING, HEAD, SHAPE.mask, 0.5, LOGITS)
RECIPE = DSparkTraining(decay=DECAY, token_weight=0.3, distance_weight=0.7, confidence_weight=0.6)


@pytest.fixture(scope="module")
def rows() -> list[list[FeatureRow]]:
    ids = iter(random_rows(5, 20))
    return [[row_of(next(ids)[:length], number) for number, length in enumerate(lengths)] for lengths in LENGTHS]


@pytest.fixture(scope="module")
def packed(rows: list[list[FeatureRow]]) -> Packed:
    return pack(rows, TOKENS, (4, 7))


@pytest.fixture(scope="module")
def batch(packed: Packed) -> BlockBatch:
    return make_blocks(packed, ANCHORS, WIDTH, WIDTH, SEED)


def step(batch: BlockBatch, recipe: DSparkTraining = RECIPE) -> Sums:
    return DSparkStep(DRAFTER, ENDS, WIDTH, recipe)(batch, Progress(1, 1, 0.0))


def drafted(ids: Tensor, states: Tensor, place: int, width: int) -> Tensor:
    """The head's inputs ``[width, d]`` of a block that begins with the token at ``place``."""
    places, mask = blocks(torch.tensor([[place]]), width, len(states))
    known = torch.full((1, width), SHAPE.mask)
    known[0, 0] = ids[place]
    made: Tensor = DRAFTER(ENDS.scale * F.embedding(known, EMBEDDING), places, states[None], mask)[0]
    return made


def positions(rows: list[list[FeatureRow]], batch: BlockBatch) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Of every position in the loss: its place in its block, the drafter's and the target's logits, and what the
    confidence head says."""
    table, after = DRAFTER.markov_head.markov_w1.weight, DRAFTER.markov_head.markov_w2.weight
    assert DRAFTER.confidence_head is not None
    for number, block, row, place in of_blocks(rows, batch):
        assert row.aux is not None
        made = drafted(row.token_ids, row.aux.float(), place, WIDTH)
        for level in range(WIDTH):
            if batch.counted[number, block, level]:
                before = table[row.token_ids[place + level]]
                own = made[level] @ HEAD.T + before @ after.T
                sure = DRAFTER.confidence_head.proj(torch.cat((made[level], before)).detach())[0]
                yield level, own, LOGITS.scale * (row.features[place + level].float() @ HEAD.T), sure


def defined(rows: list[list[FeatureRow]], batch: BlockBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, a sum, and the sums of its terms by place, ``[WIDTH]``."""
    loss = torch.zeros(())
    terms = {name: torch.zeros(WIDTH) for name in ("token", "accepted", "confidence")}
    for level, own, wanted, sure in positions(rows, batch):
        target = wanted.softmax(dim=-1)
        token = F.cross_entropy(own, target)
        distance = (own.softmax(dim=-1) - target).abs().sum()
        accepted = (1 - distance / 2).detach()
        confidence = F.binary_cross_entropy_with_logits(sure, accepted)
        loss = loss + torch.exp(torch.tensor(-level / DECAY)) * (0.3 * token + 0.7 * distance + 0.6 * confidence)
        for name, value in (("token", token), ("accepted", accepted), ("confidence", confidence)):
            terms[name][level] += value.detach()
    return loss, terms


def test_blocks_predict_the_token_after_each_of_their_rows(rows: list[list[FeatureRow]], batch: BlockBatch) -> None:
    for number, block, row, place in of_blocks(rows, batch):
        known = min(WIDTH, len(row.token_ids) - place)
        assert batch.preceding[number, block, :known].tolist() == row.token_ids[place : place + known].tolist()
        learnt = [place + n < len(row.token_ids) and bool(row.loss_mask[place + n]) for n in range(1, WIDTH + 1)]
        assert batch.counted[number, block].tolist() == [all(learnt[: n + 1]) for n in range(WIDTH)]


@pytest.mark.parametrize("chunk", [3, 512])
def test_a_step_has_the_loss_and_gradients_of_the_definition(
    chunk: int, rows: list[list[FeatureRow]], batch: BlockBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dspark_loss.dspark_losses, "__defaults__", (chunk,))
    sums = step(batch)
    loss, terms = defined(rows, batch)
    torch.testing.assert_close(sums.loss, loss)
    by_place = batch.counted.sum(dim=(0, 1))
    torch.testing.assert_close(sums.counts, (by_place * torch.exp(-torch.arange(WIDTH) / DECAY)).sum())
    assert sums.terms.keys() == terms.keys()
    for name, (found, counts) in sums.terms.items():
        torch.testing.assert_close(found, terms[name])
        assert torch.equal(counts, by_place)
    parameters = list(DRAFTER.parameters())
    made, wanted = (torch.autograd.grad(3 * value, parameters) for value in (sums.loss, loss))
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        assert other.any()


def test_a_step_without_the_markov_head_would_be_noticed(rows: list[list[FeatureRow]], batch: BlockBatch) -> None:
    other = tiny_dspark(TARGET, WIDTH)
    torch.nn.init.zeros_(other.markov_head.markov_w2.weight)
    sums = DSparkStep(other, ENDS, WIDTH, RECIPE)(batch, Progress(1, 1, 0.0))
    assert not torch.allclose(sums.loss, defined(rows, batch)[0], rtol=1e-3)


def test_a_step_in_bfloat16_has_nearly_the_same_loss(batch: BlockBatch) -> None:
    exact, rounded = (step(batch, DSparkTraining(bfloat16=bfloat16)) for bfloat16 in (False, True))
    torch.testing.assert_close(rounded.loss, exact.loss, rtol=0.02, atol=0.02)
    assert not torch.equal(rounded.loss, exact.loss)
    parameters = list(DRAFTER.parameters())
    gradients, close = (torch.autograd.grad(sums.loss, parameters) for sums in (rounded, exact))
    for gradient, other in zip(gradients, close, strict=True):
        assert gradient.dtype is torch.float32
        # Rounding changes signs of small differences, which are a large part of the distance's gradient.
        assert F.cosine_similarity(gradient.flatten(), other.flatten(), dim=0) > 0.95


def test_a_drafter_without_a_confidence_head_learns_the_rest(rows: list[list[FeatureRow]], batch: BlockBatch) -> None:
    other = tiny_dspark(TARGET, WIDTH, confidence=False)
    other.load_state_dict(DRAFTER.state_dict(), strict=False)
    sums = DSparkStep(other, ENDS, WIDTH, RECIPE)(batch, Progress(1, 1, 0.0))
    assert sums.terms.keys() == {"token", "accepted"}
    whole, _ = defined(rows, batch)
    sure = step(batch, DSparkTraining(decay=DECAY, token_weight=0, distance_weight=0, confidence_weight=0.6))
    torch.testing.assert_close(sums.loss, whole - sure.loss)


def test_a_head_that_is_trained_is_refused() -> None:
    nothing = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="the head is trained"):
        dspark_losses(
            torch.nn.Parameter(torch.zeros(4, 3)), Drafted(nothing, nothing, torch.zeros(4, 3)), nothing,
            torch.ones(2), LossWeights(1.0, 1.0), Logits(),
        )  # fmt: skip


@torch.no_grad()
def test_simulated_chains_are_those_of_one_token_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    length = 4
    row = row_of(random_rows(1, 17)[0], 0)
    assert row.aux is not None
    states = row.aux[:-1].float()
    found = simulate_dspark(DRAFTER, ENDS, row.token_ids[None, 1:], states[None], length)
    for name, few in (("TOGETHER", 3 * length), ("SCORED", 2)):
        monkeypatch.setattr(f"vllm_specext.training.block.simulation.{name}", few)
        assert torch.equal(simulate_dspark(DRAFTER, ENDS, row.token_ids[None, 1:], states[None], length), found)
    without = 0
    for place in range(1, 17):
        made, chain = drafted(row.token_ids, states, place, length), [row.token_ids[place]]
        for features in made:
            chain.append((features @ HEAD.T + DRAFTER.markov_head(chain[-1])).argmax())
        assert found[0, place - 1].tolist() == torch.stack(chain[1:]).tolist()
        without += int(torch.equal(found[0, place - 1], (made @ HEAD.T).argmax(dim=-1)))
    assert without < 16  # the Markov head says something


def test_a_batch_weighs_what_its_loss_is_divided_by(batch: BlockBatch) -> None:
    """So that a step's gradient is the same, however its packs are shared by processes."""
    made = DSparkStep(DRAFTER, ENDS, WIDTH, RECIPE)
    torch.testing.assert_close(made.weight(batch), made(batch, Progress(1, 1, 0.0)).counts)


def test_muon_leaves_tables_of_tokens_and_single_rows_to_adamw() -> None:
    adamw, muon = (set(each.param_groups[0]["params"]) for each in make_optimizers(DRAFTER, "muon", 0.1, 0.0, 5.0))
    assert DRAFTER.confidence_head is not None
    assert {*DRAFTER.markov_head.parameters(), *DRAFTER.confidence_head.parameters()} <= adamw
    assert DRAFTER.fc.weight in muon
    assert adamw | muon == set(DRAFTER.parameters())
    assert not adamw & muon
