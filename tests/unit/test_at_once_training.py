"""Drafts are learnt beside one another in one pass as each would be made alone."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.engine.pard import MASK as OTHER
from vllm_specext.demo.at_once import LEVELS, MASKS, seen
from vllm_specext.demo.dflash import MASK
from vllm_specext.demo.draft_batches import Batch, DraftBatches
from vllm_specext.demo.pard import Pard
from vllm_specext.measure.bundled import TARGET
from vllm_specext.training.step import Progress, Share


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(TARGET).float().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def batch(target: LlamaForCausalLM) -> Batch:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(4, 2048, (length,), generator=generator) for length in (40, 31)]
    return DraftBatches(target, (), rows, 2, 5, LEVELS).next(Progress(1, 1, 0.0), Share())


def alone(model: Pard, ids: Tensor, anchor: int, mask: int = MASK) -> Tensor:
    """Logits ``[LEVELS, V]`` of the draft after ``ids[anchor]``."""
    text = torch.cat((ids[: anchor + 1], torch.full((MASKS,), mask)))
    logits: Tensor = model.drafter(text[None], use_cache=False).logits[0, anchor:]
    return logits


@torch.no_grad()
def test_a_pard_draft_is_what_the_model_makes_of_the_text_and_mask_tokens(
    target: LlamaForCausalLM, batch: Batch
) -> None:
    model = Pard().eval()
    together = model(batch, target)
    for row, anchors in enumerate(batch.anchors.tolist()):
        for draft, anchor in enumerate(anchors):
            found = together[row, draft]
            torch.testing.assert_close(found, alone(model, batch.token_ids[row], anchor), atol=1e-3, rtol=0)
            other = alone(model, batch.token_ids[row], anchor, OTHER)
            torch.testing.assert_close(found[0], other[0], atol=1e-3, rtol=0)
            assert float((found[1:] - other[1:]).abs().amax(dim=-1).min()) > 1e-2


def test_mask_tokens_see_their_text_and_those_before_them() -> None:
    rows = seen(torch.tensor([[1, 2]]), 4)[0, 0]
    assert rows.shape == (4 + 2 * MASKS, 4 + 2 * MASKS)
    assert rows[:4, :4].equal(torch.ones(4, 4, dtype=torch.bool).tril())
    assert not rows[:4, 4:].any()
    assert rows[4, :4].tolist() == [True, True, False, False]
    assert rows[4 + MASKS, :4].tolist() == [True, True, True, False]
    ones = torch.ones(MASKS, MASKS, dtype=torch.bool).tril()
    assert rows[4:, 4:].equal(torch.block_diag(ones, ones).bool())
