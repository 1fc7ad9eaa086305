"""DeepSeek's DFlash drafters, which are laid out as their DSpark drafters, without a Markov head: the tokens of plain
decoding, and drafts that are those of plain torch.

There is no trained one. The bundled drafter is served in that layout, which drafts from the last token's own row, so
that each of its rows gives the token before the one that it was trained for.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.conftest import Result, of_method
from tests.engine.test_dflash_drafting import NODES, TOP_K, recorded_drafts
from tests.engine.test_dspark import MarkovDrafter
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_serving_model import Pass
from tests.engine.workload import DFLASH, TARGET
from vllm_specext.demo.dflash import BLOCK
from vllm_specext.tree.marginals import best_tree

Engines = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dflash")
    own = json.loads((DFLASH / "config.json").read_text())
    section = own.pop("dflash_config")
    for key in [key for key in own if key.startswith("speculators") or key == "transformer_layer_config"]:
        del own[key]
    own |= section | {"architectures": ["Qwen3DSparkModel"], "markov_rank": 0, "enable_confidence_head": False}
    (made / "config.json").write_text(json.dumps(own))
    # Theirs have copies of the target's embedding and output layer.
    embedding = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"]
    copies = {"embed_tokens.weight": embedding, "lm_head.weight": embedding.clone()}
    save_file(load_file(DFLASH / "model.safetensors") | copies, made / "model.safetensors")
    return made


class FromTheAnchor(MarkovDrafter):
    """Without a Markov head, so that the most likely tree is found at once."""

    def __init__(self, sequence: list[int], folder: Path) -> None:
        super(MarkovDrafter, self).__init__(sequence, DFLASH)
        self.from_anchor, self.levels = True, BLOCK

    @torch.no_grad()
    def tree(self, anchor: int, sharpness: torch.Tensor) -> list[int]:
        best = (sharpness * self.head(self.positions(anchor))).log_softmax(dim=-1).topk(TOP_K)
        tokens, _, _ = best_tree(best.indices[None], best.values[None], NODES)
        return tokens[0].tolist()


@pytest.fixture(scope="module")
def recorded(engines: Engines, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], list[Pass]]:
    path = tmp_path_factory.mktemp("passes") / "passes.pt"
    return recorded_drafts(engines, of_method("dflash-tree", folder, NODES, TOP_K), path)


def test_every_draft_is_that_of_plain_torch(folder: Path, recorded: tuple[list[int], list[Pass]]) -> None:
    sequence, passes = recorded
    drafter = FromTheAnchor(sequence, folder)
    assert len(passes) >= 5
    for one in passes:
        anchor = int(one["positions"][0])
        assert one["positions"].tolist() == list(range(anchor, anchor + BLOCK))
        assert one["tokens"][0].tolist() == drafter.tree(anchor, one["sharpness"])


def test_trees_give_the_tokens_of_plain_decoding(engines: Engines, folder: Path) -> None:
    result = engines(of_method("dflash-tree", folder, NODES, TOP_K), keep_async=True)
    assert differing(result, engines({})) == []
    assert result["sizes"][str(NODES)] > 60
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 10


@pytest.mark.extended
def test_a_deliberate_fault_is_noticed(engines: Engines, folder: Path) -> None:
    assert is_noticed(engines, engines({}), of_method("dflash-tree", folder, NODES, TOP_K), "skip_compaction")
