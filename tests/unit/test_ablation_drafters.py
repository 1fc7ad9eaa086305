"""What the rows of the ablations train: each row's drafter, its passes, and what it drafts."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.ablation.chains import counts, eagle3_chains
from benchmarks.ablation.drafters import OtherFusion, new_eagle3, new_griffin
from benchmarks.ablation.features import kept_features, text_hash
from benchmarks.ablation.rows import BY_NAME, ROWS, Row
from benchmarks.ablation.training import recipe_of, train
from tests.unit.tiny_llama import random_rows, tiny_llama
from vllm_specext.demo.training_text import CHAIN, PROMPT
from vllm_specext.training.acceptance import greedy_continuations
from vllm_specext.training.eagle3.passes import training_passes
from vllm_specext.training.packed_attention import Layout
from vllm_specext.training.shard_rows import ShardRows
from vllm_specext.training.shards import Shard

GRIFFIN = [row for row in ROWS if row.drafter == "griffin"]
FULL = BY_NAME["griffin"]


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(6, positions=256)


@pytest.fixture(scope="module")
def text(target: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return kept_features(target, "tiny", list(random_rows(6, 40)), tmp_path_factory.mktemp("text"))


def named(rows: list[Row] | tuple[Row, ...]) -> list[object]:
    return [pytest.param(row, id=row.name) for row in rows]


@pytest.mark.parametrize("row", named(GRIFFIN))
def test_rows_begin_with_the_references_weights_where_they_have_the_same_parts(
    target: LlamaForCausalLM, row: Row
) -> None:
    full, own = new_griffin(FULL, target, 5).state_dict(), new_griffin(row, target, 5).state_dict()
    both = own.keys() & full.keys()
    assert all(torch.equal(own[name], full[name]) for name in both)
    parts = {name.rpartition("_proj")[0] for name in own.keys() ^ full.keys()}
    mlp = {f"layers.0.mlp.{name}" for name in ("gate", "up", "down", "mlp.gate", "mlp.up", "mlp.down")}
    fusion = {"fc.mlp.up", "fc.mlp.down", ""}  # and its norms
    assert parts == (fusion if row.second == "none" else mlp if not row.two_heads else set())


def test_hidden_states_are_computed_once(
    target: LlamaForCausalLM, text: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = list(random_rows(6, 40))
    monkeypatch.setattr("benchmarks.ablation.features.TargetRows", None)
    assert kept_features(target, "tiny", rows, text.path.parent) == text
    assert text_hash(rows) != text_hash(rows[::-1])
    for row, ids in zip(ShardRows([text], 0).read(range(6)), rows, strict=True):
        assert torch.equal(row.token_ids, ids)
        wanted = target.model(ids[None]).last_hidden_state[0]
        assert (row.features - wanted).abs().mean() < 0.05 * wanted.abs().mean()


def test_fusion_with_the_embedding_is_the_served_one(target: LlamaForCausalLM) -> None:
    served = new_griffin(FULL, target, 0).fc
    features, embeddings = torch.randn(2, 1, 7, 32)
    with torch.no_grad():
        made = {
            second: OtherFusion(served, second)(features, embeddings)
            for second in ("embedding", "none", "hidden", "feature")
        }
        torch.testing.assert_close(made["embedding"], served(features, embeddings))
    others = [made[second] for second in ("embedding", "none", "hidden", "feature")]
    assert all(not torch.allclose(x, y) for i, x in enumerate(others) for y in others[:i])


def test_one_output_feature_serves_for_both_uses(target: LlamaForCausalLM) -> None:
    model = new_griffin(BY_NAME["griffin-no-teh"], target, 0)
    predict, regress = model.layer.finish(torch.randn(1, 3, 32))
    assert torch.equal(predict, regress)
    predict, regress = new_griffin(FULL, target, 0).layer.finish(torch.randn(1, 3, 32))
    assert not torch.allclose(predict, regress)


@pytest.mark.parametrize("row", named(ROWS))
def test_a_row_is_trained_with_its_passes_and_accepts_what_can_be_counted(
    target: LlamaForCausalLM, text: Shard, row: Row
) -> None:
    recipe = recipe_of(row, seed=0, steps=(1, 1, 1), rates=(8e-3, 8e-3, 8e-3))
    model, log = train(row, target, text, recipe, tokens=80)
    assert [len(entry["token"]) for entry in log] == [min(stage, row.passes) for stage in (1, 2, 3)]
    if row.passes > 1:
        # Without alignment a later pass learns from all that the first learns from.
        first, later = log[1]["counted"]
        assert (later == first) == (row.align == 0)
    own = greedy_continuations(target, random_rows(2, PROMPT, seed=1), 40)
    for verifications, accepted in counts(model, target, list(own)):
        # Each moves on by what it accepts and one token, as long as a whole chain can be compared.
        assert 0 <= verifications + accepted - (40 - CHAIN) <= CHAIN
        assert 0 <= accepted <= CHAIN * verifications


@pytest.mark.parametrize("row", named([FULL, BY_NAME["eagle3"]]))
def test_the_seed_gives_the_weights(target: LlamaForCausalLM, text: Shard, row: Row) -> None:
    def weights(seed: int, steps: int) -> Tensor:
        model, _ = train(row, target, text, recipe_of(row, seed, (steps,), (8e-3,)), tokens=80)
        return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])

    assert torch.equal(weights(1, steps=2), weights(1, steps=2))
    for steps in (0, 2):  # the first ones, too
        assert not torch.allclose(weights(1, steps), weights(2, steps))


@torch.no_grad()
def test_eagle3s_chains_are_what_its_training_passes_draft(target: LlamaForCausalLM) -> None:
    """A text that goes on as the chain does: pass ``n`` over it makes the chain's ``n``-th token."""
    model, known = new_eagle3(target, 0), random_rows(3, 9)
    chain = eagle3_chains(model, target, known, CHAIN)[:, -1]
    text = torch.cat((known, chain), dim=1)
    states = target.model(text, output_hidden_states=True).hidden_states
    read = torch.cat([states[n] for n in model.shape.layers], dim=-1)[:, :-1]
    embeddings = target.get_input_embeddings()(text[:, 1:])
    passes = training_passes(model, embeddings, read, Layout.of([[text.shape[1] - 1]] * 3), CHAIN)
    drafted = [target.lm_head(output[:, 7 + n]).argmax(dim=-1) for n, output in enumerate(passes)]
    assert torch.equal(torch.stack(drafted, dim=1), chain)
