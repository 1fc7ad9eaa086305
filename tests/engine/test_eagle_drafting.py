"""What vLLM's EAGLE-3 drafter computes for trees is what the plain torch drafter computes, pass by pass, from hidden
states of the target in transformers.

A mistake here would never change the output, only make drafts worse, so that no test of equality would notice it.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.engine.conftest import Result, eagle3, of_method
from tests.engine.test_serving_model import Pass
from tests.engine.test_tree_drafting import TOP_K, Replay, accepted, drafts, record
from tests.engine.workload import DRAFT_VOCABULARY, EAGLE3, TARGET
from vllm_specext.methods.layers import KV
from vllm_specext.training.eagle3.checkpoint import read_shape, read_tensors, write_checkpoint
from vllm_specext.training.eagle3.model import Eagle3Drafter, new_eagle3_drafter


class Plain:
    """The bundled drafter or another one, with the target that it was trained for."""

    def __init__(self, folder: Path = EAGLE3) -> None:
        self.target = LlamaForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
        self.drafter = Eagle3Drafter(read_shape(folder, self.target.config.num_hidden_layers)).eval()
        self.drafter.load_state_dict(read_tensors(folder))

    @torch.no_grad()
    def features(self, sequence: list[int]) -> Tensor:
        """What the drafter reads of every position of a text, ``[tokens, d]``."""
        states = self.target(torch.tensor([sequence]), output_hidden_states=True).hidden_states
        read = [states[layer] for layer in self.drafter.shape.layers]
        features: Tensor = self.drafter.fc(torch.cat(read, dim=-1))[0]
        return features

    def __call__(
        self, ids: Tensor, features: Tensor, positions: Tensor, mask: Tensor, past: KV | None
    ) -> tuple[Tensor, Tensor, KV]:
        layer = self.drafter.layer
        embeddings = self.target.model.embed_tokens(ids)
        attended, past = layer.self_attn(layer.fuse(features, embeddings), positions, mask, past)
        output = layer.finish(layer.residual(features) + attended)
        return self.drafter.norm(output), output, past


@pytest.fixture(scope="module")
def plain() -> Plain:
    return Plain()


@pytest.fixture(scope="module")
def recorded(engines: Callable[..., Result], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], list[Pass]]:
    return record(engines, tmp_path_factory.mktemp("eagle3") / "passes.pt", eagle3(24, TOP_K))


def test_every_level_of_every_draft_is_that_of_the_plain_drafter(
    plain: Plain, recorded: tuple[list[int], list[Pass]]
) -> None:
    replay = Replay(plain)
    made = drafts(recorded[1])
    assert len(made) >= 5
    for first, levels in made:
        replay.draft(accepted(first, levels), levels)
    assert replay.largest < 1e-4


@pytest.mark.extended
def test_so_is_that_of_a_drafter_as_others_release_theirs(engines: Callable[..., Result], tmp_path: Path) -> None:
    """With an output layer of its own for some tokens, and the norm before the residual."""
    folder, target = tmp_path / "drafter", LlamaForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    ids = sorted(json.loads(DRAFT_VOCABULARY.read_text())["ids"])
    bundled = read_shape(EAGLE3, target.config.num_hidden_layers)
    shape = replace(bundled, draft_vocab_size=len(ids), norm_before_residual=True)
    made = new_eagle3_drafter(shape, head=target.lm_head.weight, tokens=ids)
    made.load_state_dict(made.state_dict() | read_tensors(EAGLE3))
    write_checkpoint(folder, shape, made.state_dict(), torch.float32)
    own = made.own_head()
    assert own is not None

    def logits(features: Tensor) -> Tensor:
        scores = torch.full((*features.shape[:-1], shape.vocab_size), -torch.inf)
        scores[..., own.tokens] = features @ own.weight.T
        return scores

    llm = of_method("eagle3-tree", folder, 24, TOP_K)
    _, passes = record(engines, tmp_path / "passes.pt", llm)
    replay = Replay(Plain(folder), logits)
    found = drafts(passes)
    assert len(found) >= 5
    for first, levels in found:
        replay.draft(accepted(first, levels), levels)
    assert replay.largest < 1e-4
    assert Plain(folder).drafter.layer.norm_before_residual


def wrong_features(of_text: Callable[[list[int]], Tensor], sequence: list[int], passes: list[Pass]) -> tuple[int, int]:
    """Rows of the drafts' first passes, and those among them whose features are not the target's."""
    features = of_text(sequence)
    rows = wrong = 0
    for draft in drafts(passes):
        first = accepted(*draft)
        for position, feature in zip(first["positions"].tolist(), first["features"], strict=True):
            if position + 1 < len(sequence):  # later ones were accepted beyond the request's last token
                rows += 1
                wrong += not torch.allclose(feature, features[position], atol=1e-3)
    return rows, wrong


def test_the_drafter_reads_what_the_targets_layers_leave(plain: Plain, recorded: tuple[list[int], list[Pass]]) -> None:
    rows, wrong = wrong_features(plain.features, *recorded)
    assert rows > len(recorded[0]) - 10
    assert wrong == 0


@pytest.mark.extended
def test_features_that_are_not_those_of_the_accepted_path_are_noticed(
    engines: Callable[..., Result], plain: Plain, recorded: tuple[list[int], list[Pass]], tmp_path: Path
) -> None:
    """They never change the output."""
    faulty = record(engines, tmp_path / "passes.pt", eagle3(24, TOP_K), sabotage="read_features_in_the_steps_order")
    assert faulty[0] == recorded[0]
    assert wrong_features(plain.features, *faulty)[1] >= 5
