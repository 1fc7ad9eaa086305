"""Each method's part of a training: a drafter that begins, is exported as it is served, and drafts the same again."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.runs import settings
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.methods.token_counts import write
from vllm_specext.training.data.row import make_row
from vllm_specext.training.logits import Logits
from vllm_specext.training.moa import train as moa
from vllm_specext.training.pipeline.method import Drafter
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.moa import MoAMethod, MoAWithTarget
from vllm_specext.training.pipeline.moa_plan import shape
from vllm_specext.training.pipeline.target import TargetModel, read_target
from vllm_specext.training.pipeline.text_rows import TextRows
from vllm_specext.training.recipes.block import DFlashRecipe
from vllm_specext.training.recipes.moa import MoARecipe
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.run import Run

ANEW = [name for name in TRAINABLE if name != "mtp"]
"""Those that begin a new drafter. The bundled target has no module that could be trained further."""
CPU = torch.device("cpu")
LENGTH, CHAIN = 12, 3


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return read_target(str(TARGET), weights=True)


def row(method: str, target: TargetModel) -> FeatureRow:
    """Random states, as preparation keeps them for the method."""
    generator = torch.Generator().manual_seed(0)
    width, layers = target.hidden_size, TRAINABLE[method].layers(target)
    ids = torch.randint(0, target.vocab_size, (LENGTH + 1,), generator=generator)
    aux = None if layers is None else torch.randn(LENGTH + 1, len(layers) * width, generator=generator)
    return FeatureRow(ids, torch.ones_like(ids), torch.randn(LENGTH + 1, width, generator=generator), aux)


@torch.no_grad()
def drafts(drafter: Drafter, method: str, target: TargetModel) -> Tensor:
    text = row(method, target)
    return drafter.draft(text.token_ids[None, 1:], TRAINABLE[method].states(text)[None, :-1], CHAIN)


@pytest.mark.parametrize("name", ANEW)
def test_a_new_drafter_follows_from_the_seed_and_has_as_many_numbers_as_planned(name: str, target: TargetModel) -> None:
    method, recipe = TRAINABLE[name], settings(method=name, recipe={"mlp_size": 64}).recipe
    one, same = (method.begin(target, recipe, None, CPU) for _ in range(2))
    other = method.begin(target, recipe.model_copy(update={"seed": 1}), None, CPU)
    assert torch.equal(drafts(one, name, target), drafts(same, name, target))
    assert not torch.equal(drafts(one, name, target), drafts(other, name, target))
    trained = sum(p.numel() for p in one.model.parameters() if p.requires_grad)
    assert trained == method.sizes(target, recipe).trained


@pytest.mark.parametrize("name", ANEW)
def test_what_is_exported_drafts_the_same(name: str, target: TargetModel, tmp_path: Path) -> None:
    method = TRAINABLE[name]
    drafter = method.begin(target, settings(method=name, recipe={"mlp_size": 64, "bfloat16": False}).recipe, None, CPU)
    drafter.model.bfloat16().float()  # the type of the export
    method.export(drafter.model, tmp_path)
    again = method.load(tmp_path, target, CPU)
    assert all(p.dtype is torch.float32 for p in again.model.parameters())
    assert torch.equal(drafts(again, name, target), drafts(drafter, name, target))
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_the_target_beside_moa_is_in_the_type_of_the_arithmetic(target: TargetModel, tmp_path: Path) -> None:
    """With either the bundled drafter drafts nearly the same, and a new one learns nearly as much."""
    texts = [make_row(range(40, 60), [False] * 5 + [True] * 15, str(number)) for number in range(4)]
    found, losses = {}, {}
    for bfloat16 in (False, True):
        keys = {
            "bfloat16": bfloat16,
            "mlp_size": 32,
            "target_layer_inference": 1,
            "tokens_per_step": 80,
            "log_every": 1,
        }
        recipe = settings(method="moa", recipe=keys).recipe
        begun = [MoAMethod().begin(target, recipe, init, CPU) for init in (MODELS / "moa", None)]
        for drafter in begun:
            assert isinstance(drafter, MoAWithTarget)
            assert drafter.head.dtype is (torch.bfloat16 if bfloat16 else torch.float32)
        found[bfloat16] = drafts(begun[0], "moa", target)
        loaded = MoAMethod().load(MODELS / "moa", target, CPU, bfloat16=bfloat16)
        assert torch.equal(drafts(loaded, "moa", target), found[bfloat16])
        folder = tmp_path / str(bfloat16)
        begun[1].train(TextRows(texts, 0), recipe, (5,), 1, folder, Run())
        losses[bfloat16] = [entry["loss"] for entry in json.loads((folder / "training.json").read_text())["log"]]
    assert (found[True] == found[False]).float().mean() > 0.8
    assert losses[True] == pytest.approx(losses[False], rel=0.02)
    assert losses[True] != losses[False]


@pytest.mark.parametrize("name", ANEW)
def test_a_training_begins_with_the_drafter_that_is_given(name: str, target: TargetModel, tmp_path: Path) -> None:
    method, recipe = TRAINABLE[name], settings(method=name, recipe={"bfloat16": False}).recipe
    given = MODELS / name
    if name in ("dflash", "dspark"):  # the bundled one reads fewer layers
        given = tmp_path
        method.export(method.begin(target, recipe.model_copy(update={"seed": 7}), None, CPU).model, given)
    method.check_init(given, target)
    known = recipe.beginning_with(method.kept(given, target))
    begun = method.begin(target, known, given, CPU)
    trained = sum(p.numel() for p in begun.model.parameters() if p.requires_grad)
    assert method.sizes(target, known).trained == trained
    loaded = method.load(given, target, CPU)
    if name == "griffin":
        # Its own copy of the embedding is rounded to bfloat16; a training begins with the target's.
        embedding = begun.model.embed_tokens.weight
        assert torch.equal(embedding.bfloat16().float(), loaded.model.embed_tokens.weight)
        loaded.model.embed_tokens.weight.data.copy_(embedding)
    assert torch.equal(drafts(begun, name, target), drafts(loaded, name, target))
    assert all(p.dtype is torch.float32 for p in begun.model.parameters())


class Rows:
    """Four that are alike."""

    lengths = (LENGTH + 1,) * 4

    def __init__(self, method: str, target: TargetModel) -> None:
        self.row = row(method, target)

    def order(self, epoch: int) -> range:
        return range(4)

    def read(self, rows: Sequence[int], epoch: int = 0) -> list[FeatureRow]:
        return [self.row for _ in rows]


@pytest.mark.parametrize("name", ANEW)
def test_what_is_learnt_is_the_distribution_that_the_target_caps(
    name: str, target: TargetModel, tmp_path: Path
) -> None:
    """Here so low that all tokens are as likely. Where a server caps a drafter's logits too, all of its are as well."""
    keys = {"mlp_size": 64, "bfloat16": False, "tokens_per_step": 64, "packs": 1, "log_every": 1}
    recipe = settings(method=name, recipe=keys).recipe
    losses = {}
    for cap in (None, 1e-6):
        config = target.config | {"final_logit_softcapping": cap}
        drafter = TRAINABLE[name].begin(replace(target, config=config), recipe, None, CPU)
        steps = (1,) * recipe.stages
        drafter.train(Rows(name, target), recipe, steps, 1, tmp_path / str(cap), Run())
        log = json.loads((tmp_path / str(cap) / "training.json").read_text())["log"]
        losses[cap] = np.array(log[0]["token"]).mean()
    assert losses[None] != pytest.approx(losses[1e-6], rel=1e-3)
    assert (losses[1e-6] == pytest.approx(math.log(target.vocab_size), rel=1e-4)) == (name in ("griffin", "moa"))


def test_drafters_are_measured_by_chains_of_five_or_whole_blocks() -> None:
    chains = {name: settings(method=name, recipe={}).recipe.chain for name in TRAINABLE}
    assert chains == {"griffin": 5, "eagle3": 5, "dflash": 15, "dspark": 7, "mtp": 5, "moa": 5}
    assert DFlashRecipe(block_size=2).chain == 1


def test_an_eagle3_drafter_of_other_layers_is_refused_to_begin_with(target: TargetModel, tmp_path: Path) -> None:
    method = TRAINABLE["eagle3"]
    method.export(method.begin(target, settings(method="eagle3").recipe, None, CPU).model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eagle_aux_hidden_state_layer_ids": [1, 6, 9]}))
    with pytest.raises(ConfigurationError, match=r"a drafter with layers \(1, 6, 9\), but for this target it is"):
        method.check_init(tmp_path, target)


def test_an_eagle3_drafter_with_a_vocabulary_of_its_own_is_begun_and_begun_with(
    target: TargetModel, tmp_path: Path
) -> None:
    method, file = TRAINABLE["eagle3"], tmp_path / "ids.json"
    write(file, str(TARGET), target.vocab_size, list(range(300, 500)), Counter({1: 1}))
    keys = {"mlp_size": 64, "bfloat16": False, "draft_vocab_size": 120, "draft_vocab_file": str(file)}
    recipe = settings(method="eagle3", recipe=keys).recipe
    drafter, folder = method.begin(target, recipe, None, CPU), tmp_path / "drafter"
    sharing = settings(method="eagle3", recipe={"mlp_size": 64}).recipe
    assert method.sizes(target, recipe).trained == sum(p.numel() for p in drafter.model.parameters())
    assert method.operations(target, recipe) < method.operations(target, sharing)
    found = drafts(drafter, "eagle3", target)
    assert ((found >= 300) & (found < 420)).all()
    drafter.model.bfloat16().float()
    method.export(drafter.model, folder)
    method.check_init(folder, target)
    plain = settings(method="eagle3", recipe={"bfloat16": False}).recipe
    known = plain.beginning_with(method.kept(folder, target))
    begun = method.begin(target, known, folder, CPU)
    assert method.sizes(target, known) == method.sizes(target, recipe)
    assert torch.equal(drafts(begun, "eagle3", target), drafts(drafter, "eagle3", target))


def test_a_new_moa_drafter_has_the_shape_that_was_planned(target: TargetModel) -> None:
    for recipe in (MoARecipe(mlp_size=64, target_layer_inference=1), MoARecipe(mlp_size=64, lsa=False)):
        begun = MoAMethod().begin(target, recipe, None, CPU)
        assert isinstance(begun, MoAWithTarget)
        assert begun.model.shape == shape(target, recipe)
        assert (begun.last_layers is None) == (recipe.target_layer_inference == 0)


def test_moa_learns_where_the_next_token_is_in_the_loss(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = MoARecipe(mlp_size=8, lsa_mlp_size=8, tokens_per_step=16)
    drafter = MoAMethod().begin(target, recipe, None, CPU)
    assert isinstance(drafter, MoAWithTarget)
    given: list[Any] = []
    monkeypatch.setattr(moa, "train_moa", lambda *arguments: given.extend(arguments))
    texts = [make_row([5, 6, 7, 8], [False, False, True, True], "a"), make_row([9, 10], [False, True], "b")]
    drafter.train(TextRows(texts, 0), recipe, (20,), 2, tmp_path, Run())
    _, _, last_layers, reader, _, how, _, logits = given
    assert logits == Logits()
    assert [mask.tolist() for mask in reader.learnt] == [[False, True, True, False], [True, False]]
    assert reader.order.size == 2 * 16 // 4  # rows of 4 tokens in packs of 16, for two processes
    assert (last_layers, how.steps, how.warmup_steps) == (None, 20, 2)


def test_rows_of_text_come_in_another_order_in_every_epoch() -> None:
    rows = TextRows([make_row(range(length), [True] * length, str(length)) for length in range(2, 22)], seed=0)
    assert rows.lengths == list(range(2, 22))
    orders = [rows.order(epoch) for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert [len(row.token_ids) for row in rows.read([3, 1])] == [5, 3]
    with pytest.raises(ConfigurationError, match="no rows of text"):
        TextRows([], seed=0)
