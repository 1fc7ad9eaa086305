"""Trees of Gemma 4's assistants give the tokens of plain decoding on the real engine.

Target and assistant are small and of random weights, so that few drafts are accepted; requests' predictions are, and
what is drafted is compared with transformers' own assistant.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.engine.assistant import (
    LEVELS,
    NODES,
    TOP_K,
    assistant_tree,
    make_assistant,
    make_target_that_sees,
)
from tests.engine.conftest import ROUND, Result, any_sizes
from tests.engine.test_architectures import WINDOW, make
from tests.engine.test_given import PREDICTION, predicting
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_tree_drafting import REQUEST, record
from tests.engine.test_windows import SMALL
from vllm_specext.tree.expansion import Expansion, best_tokens

Engines = Callable[..., Result]
Models = tuple[Path, Path]


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.extended)], ids=["all", "clusters"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    target, assistant = (tmp_path_factory.mktemp(name) for name in ("target", "assistant"))
    return make("Gemma4", target), make_assistant(assistant, request.param)


@pytest.mark.parametrize(
    ("nodes", "top_k"), [(NODES, TOP_K), pytest.param(LEVELS, 1, marks=pytest.mark.extended)], ids=["tree", "chain"]
)
def test_drafts_give_the_tokens_of_plain_decoding(engines: Engines, models: Models, nodes: int, top_k: int) -> None:
    answers = engines({"model": str(models[0])})["outputs"][: len(ROUND)]
    llm = assistant_tree(models, nodes, top_k, prediction_tokens=LEVELS)
    result = engines(llm, rounds=[predicting(ROUND, answers), ROUND], keep_async=True)
    assert differing(result, {"outputs": answers + answers}) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200
    assert result["sizes"][str(nodes)] > 60


@pytest.mark.extended
def test_trees_for_a_target_that_sees_do(engines: Engines, models: Models, tmp_path: Path) -> None:
    """As Gemma 4 is released. It is asked for text alone."""
    target = make_target_that_sees(tmp_path)
    blind = {"limit_mm_per_prompt": {"image": 0, "video": 0, "audio": 0}}
    plain = engines({"model": str(target)} | blind, torchvision=True)
    result = engines(assistant_tree((target, models[1])) | blind, keep_async=True, torchvision=True)
    assert differing(result, plain) == []
    assert result["sizes"][str(NODES)] > 60


@pytest.mark.extended
@pytest.mark.parametrize("tight", [{}, SMALL], ids=["roomy", "tight"])
def test_trees_drafted_in_graphs_do(engines: Engines, models: Models, tight: dict[str, Any]) -> None:
    """What CUDA graphs would replay is recorded, padded as they are."""
    result = engines(assistant_tree(models) | tight, keep_async=True, graphs=[2, 5, 8])
    assert differing(result, engines({"model": str(models[0])})) == []
    assert set(result["replays"]) == {2, 5, 8}


@pytest.mark.extended
def test_any_sizes_and_depths_do(engines: Engines, models: Models) -> None:
    result = engines(any_sizes(assistant_tree(models)), keep_async=True, sabotage="draw_sizes")
    assert differing(result, engines({"model": str(models[0])})) == []
    assert len([depth for depth, count in result["depths"].items() if count > 10]) >= 2


@pytest.mark.extended
def test_a_deliberate_fault_is_noticed(engines: Engines, models: Models) -> None:
    plain = engines({"model": str(models[0])})
    assert is_noticed(engines, plain, assistant_tree(models), "accept_the_best_node_of_every_tree")


class Assistant:
    """Transformers' own, beside its target."""

    def __init__(self, models: Models) -> None:
        target, assistant = models
        self.target = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        self.model = transformers.Gemma4AssistantForCausalLM.from_pretrained(assistant, dtype=torch.float32)
        # Transformers lets an assistant see one token more than its target does.
        self.model.config.get_text_config().sliding_window -= 1

    def read(self, text: list[int]) -> Tensor:
        """Take in a ``text``; hidden state of its last token ``[1, d]``."""
        ids = torch.tensor([text])
        made = self.target(ids, output_hidden_states=True, return_shared_kv_states=True, use_cache=True)
        self.kept, self.place = made.shared_kv_states, torch.tensor([[len(text)]])
        last: Tensor = made.hidden_states[-1][0, -1:]
        return last

    def __call__(self, ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and features after each of the tokens ``ids`` ``[rows]``, given ``features`` ``[rows, d]``."""
        tokens = self.target.get_input_embeddings()(ids)
        rows = [
            self.model(
                inputs_embeds=torch.cat((token, feature))[None, None],
                position_ids=self.place,
                shared_kv_states=self.kept,
            )
            for token, feature in zip(tokens, features, strict=True)
        ]
        logits, made = (torch.cat([row[name][0] for row in rows]) for name in ("logits", "last_hidden_state"))
        if self.model.masked_embedding is not None:  # transformers still gives tokens of other clusters a chance
            logits = logits.masked_fill(logits == logits.min(dim=-1, keepdim=True).values, float("-inf"))
        return logits, made


@torch.no_grad()
@pytest.mark.parametrize("predicted", [False, True], ids=["", "after predictions"])
def test_every_level_of_every_draft_is_that_of_transformers(
    engines: Engines, models: Models, tmp_path: Path, predicted: bool
) -> None:
    """Hidden states come out of the middle of drafts where these are accepted, as predictions are."""
    sequence, passes = record(engines, tmp_path / "passes.pt", assistant_tree(models))
    assert len(sequence) > len(REQUEST["ids"]) > WINDOW["sliding_window"]
    if predicted:
        answer = sequence[len(REQUEST["ids"]) :]
        llm = assistant_tree(models, prediction_tokens=LEVELS)
        other, passes = record(engines, tmp_path / "others.pt", llm, extra_args={PREDICTION: answer})
        assert other == sequence
    assistant, largest = Assistant(models), 0.0
    assert len(passes) >= 5 * LEVELS
    places = [int(one["positions"][0]) for one in passes[::LEVELS]]
    assert (max(later - one for one, later in pairwise(places)) > LEVELS) == predicted
    for first, *levels in (passes[at : at + LEVELS] for at in range(0, len(passes) - LEVELS + 1, LEVELS)):
        place, sharpness = int(first["positions"]), first["sharpness"].expand(1, TOP_K)
        if place == len(sequence):
            break  # after the last token that was asked for
        given = assistant.read(sequence[:place])
        assert first["ids"].tolist() == sequence[place : place + 1]
        logits, made = assistant(first["ids"], first["features"])
        growing = Expansion(*best_tokens(logits, TOP_K, sharpness[:, 0]), LEVELS)
        compared = [(given, first["features"]), (made, first["regress"])]
        parents = torch.zeros(TOP_K, dtype=torch.int64)
        for one in levels:
            assert one["ids"].tolist() == growing.frontier.tokens[0].tolist()
            assert one["positions"].tolist() == [place] * TOP_K
            given = made[parents]
            # As the engine's: differences grow from level to level.
            logits, made = assistant(one["ids"], one["features"])
            compared += [(given, one["features"]), (made, one["regress"])]
            growing.grow(*(each[None] for each in best_tokens(logits, TOP_K, sharpness[0])))
            parents = growing.frontier.parents[0]
        largest = max(largest, *(float((ours - theirs).abs().max()) for ours, theirs in compared))
    assert largest < 2e-4
