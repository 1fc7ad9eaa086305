"""DFlash's and DSpark's part of a training: what a new drafter has, and one that a training begins with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.unit.runs import settings
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import TARGET
from vllm_specext.training.block.models import TrainedDFlash, TrainedDSpark, drafter_of
from vllm_specext.training.pipeline.mask_token import mask_token
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.target import TargetModel, read_target
from vllm_specext.training.recipes.block import DFlashRecipe, DSparkRecipe

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return read_target(str(TARGET), weights=True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reads": (2, 6, 9)}, r"target_layer_ids are \[1, 5, 8\], but for this target they are \[1, 3, 5, 7, 9\]"),
        ({"vocab_size": 9}, "a drafter with vocab_size 9, but for this target it is 2048"),
    ],
)
@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_a_block_drafter_of_other_layers_or_tokens_is_refused_to_begin_with(
    name: str, changes: dict[str, Any], expected: str, target: TargetModel, tmp_path: Path
) -> None:
    method = TRAINABLE[name]
    model = method.begin(target, settings(method=name, recipe={"layers": 1}).recipe, None, CPU).model
    assert isinstance(model, TrainedDFlash | TrainedDSpark)
    method.export(drafter_of(replace(model.shape, **changes)), tmp_path)
    with pytest.raises(ConfigurationError, match=expected):
        method.check_init(tmp_path, target)


def test_the_mask_of_a_dflash_drafter_is_a_token_that_texts_do_not_have(target: TargetModel) -> None:
    recipe = DFlashRecipe()
    assert mask_token(target, recipe) == 0  # the padding, because the tokenizer has a text for all 2048
    assert mask_token(replace(target, vocab_size=2060), recipe) == 2048
    assert mask_token(target, DFlashRecipe(mask_token_id=1)) == 1
    with pytest.raises(ConfigurationError, match="'mask_token_id' is 2048, but the target has 2048 tokens"):
        mask_token(target, DFlashRecipe(mask_token_id=2048))


def test_padding_that_ends_answers_is_the_last_resort(target: TargetModel, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target.folder)
    for special, expected in (
        ({"eos_token": "<|over|>", "pad_token": "<|over|>"}, 2048),
        ({"additional_special_tokens": ["<|reserved|>"]}, 2049),
        ({"pad_token": "<|padding|>"}, 2050),
    ):
        tokenizer.add_special_tokens(special)
        tokenizer.save_pretrained(tmp_path)
        assert mask_token(replace(target, folder=tmp_path, vocab_size=len(tokenizer)), DFlashRecipe()) == expected


def test_padding_that_the_target_has_no_embedding_of_is_no_mask(target: TargetModel, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target.folder)
    tokenizer.add_special_tokens({"pad_token": "<|padding|>"})
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match="no padding; the recipe's key 'mask_token_id'"):
        mask_token(replace(target, folder=tmp_path), DFlashRecipe())


@pytest.mark.parametrize("reserved", [True, False])
def test_where_a_tokenizer_has_no_padding_a_token_in_reserve_is_the_mask(
    reserved: bool, target: TargetModel, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target.folder)
    tokenizer.pad_token = None
    if reserved:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|reserved_special_token_0|>"]})
    tokenizer.save_pretrained(tmp_path)
    other = replace(target, folder=tmp_path, vocab_size=len(tokenizer))
    if reserved:
        assert mask_token(other, DFlashRecipe()) == 2048
    else:
        with pytest.raises(ConfigurationError, match="the recipe's key 'mask_token_id' has to name a token"):
            mask_token(other, DFlashRecipe())


def test_a_new_dflash_drafter_has_what_the_recipe_says(target: TargetModel) -> None:
    recipe = DFlashRecipe(layers=2, block_size=9, mask_token_id=7, mlp_size=48)
    model = TRAINABLE["dflash"].begin(target, recipe, None, CPU).model
    assert isinstance(model, TrainedDFlash)
    shape = model.shape
    assert (shape.layers, shape.block, shape.mask, shape.mlp_size) == (2, 9, 7, 48)


def test_a_new_dspark_drafter_has_the_heads_that_the_recipe_says(target: TargetModel, tmp_path: Path) -> None:
    method = TRAINABLE["dspark"]
    for weight in (1.0, 0.0):
        recipe = DSparkRecipe(layers=1, markov_rank=12, mlp_size=48, confidence_weight=weight)
        model = method.begin(target, recipe, None, CPU).model
        assert isinstance(model, TrainedDSpark)
        assert (model.confidence_head is None) == (weight == 0)
        method.export(model, tmp_path)
        kept = method.kept(tmp_path, target)
        assert kept == {"mlp_size": 48, "layers": 1, "block_size": 7, "mask_token_id": 0, "markov_rank": 12}


@pytest.mark.parametrize(("before", "after"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_a_drafter_that_is_begun_with_has_a_confidence_head_where_the_recipe_trains_one(
    before: float, after: float, target: TargetModel, tmp_path: Path
) -> None:
    method, widths = TRAINABLE["dspark"], {"layers": 1, "markov_rank": 12, "mlp_size": 48}
    first = method.begin(target, DSparkRecipe(**widths, confidence_weight=before, seed=1), None, CPU).model
    method.export(first, tmp_path)
    model = method.begin(target, DSparkRecipe(**widths, confidence_weight=after), tmp_path, CPU).model
    assert isinstance(model, TrainedDSpark)
    assert (model.confidence_head is None) == (not model.shape.confidence) == (after == 0)
    kept = first.state_dict().keys() & model.state_dict().keys()
    assert len(kept) >= len(model.state_dict()) - 2
    assert all(torch.equal(model.state_dict()[name], first.state_dict()[name].bfloat16()) for name in kept)
