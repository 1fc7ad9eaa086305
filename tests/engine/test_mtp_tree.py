"""Trees of a target's own multi-token prediction module give the tokens of plain decoding on the real engine.

The target is made: the bundled one in MiMo's layout, whose attention has biases, with a module of random weights. So
few drafts are accepted; what is drafted is compared with the same module in plain torch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.mimo import make_mimo
from tests.engine.conftest import Result, any_sizes, of_method
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_serving_model import Pass
from tests.engine.test_tree_drafting import REQUEST, Drafter, Replay, accepted, drafts, record
from vllm_specext.methods.layers import KV, extend
from vllm_specext.training.mtp.model import MtpModule
from vllm_specext.training.pipeline.chained import ChainedDrafter
from vllm_specext.training.pipeline.mtp import MtpMethod
from vllm_specext.training.pipeline.target import read_target
from vllm_specext.training.recipes.mtp import MtpRecipe

Engines = Callable[..., Result]

NODES, TOP_K, LEVELS = 24, 4, 6


@pytest.fixture(scope="module")
def mimo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mimo(tmp_path_factory.mktemp("mimo"))


def trees(mimo: Path, nodes: int = NODES, top_k: int = TOP_K) -> dict[str, Any]:
    own = of_method("mtp-tree", mimo, nodes, top_k)
    del own["speculative_config"]["model"]
    own["speculative_config"]["tree_depth"] = LEVELS
    return own | {"model": str(mimo)}


@pytest.mark.parametrize(
    ("nodes", "top_k"), [(NODES, TOP_K), pytest.param(4, 1, marks=pytest.mark.extended)], ids=["tree", "chain"]
)
def test_drafts_give_the_tokens_of_plain_decoding(engines: Engines, mimo: Path, nodes: int, top_k: int) -> None:
    result = engines(trees(mimo, nodes, top_k), keep_async=True)
    assert differing(result, engines({"model": str(mimo)})) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 0
    assert result["sizes"][str(nodes)] > 60


@pytest.mark.extended
def test_any_sizes_and_depths_give_the_tokens_of_plain_decoding(engines: Engines, mimo: Path) -> None:
    result = engines(any_sizes(trees(mimo)), keep_async=True, sabotage="draw_sizes")
    assert differing(result, engines({"model": str(mimo)})) == []
    assert len([depth for depth, count in result["depths"].items() if count > 10]) >= 2


@pytest.mark.extended
def test_a_deliberate_fault_in_a_tree_is_noticed(engines: Engines, mimo: Path) -> None:
    assert is_noticed(engines, engines({"model": str(mimo)}), trees(mimo), "accept_the_best_node_of_every_tree")


def module(target: Path, folder: Path | None = None) -> Drafter:
    """The module of ``target``, or the one that is alone in ``folder``, in plain torch."""
    method, read = MtpMethod(), read_target(str(target), weights=True)
    own = method.begin(read, MtpRecipe(), folder, torch.device("cpu"))
    assert isinstance(own, ChainedDrafter)
    model = own.model
    assert isinstance(model, MtpModule)
    attention = model.self_attn

    @torch.no_grad()
    def run(ids: Tensor, features: Tensor, places: Tensor, mask: Tensor, past: KV | None) -> tuple[Tensor, Tensor, KV]:
        fused = model.fuse(features, own.embedding[ids], places)
        kv = extend(past, attention.keys_values(fused, places))
        made = model.finish(fused, attention.attend(attention.queries(fused, places), kv, mask))
        return made, made, kv

    return run


def another_module(folder: Path, target: Path) -> Path:
    """Alone in a folder, as a training leaves it; of other weights than the target's own, and without its ends."""
    torch.manual_seed(1)
    model = MtpMethod().begin(read_target(str(target), weights=True), MtpRecipe(), None, torch.device("cpu")).model
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    MtpMethod().export(model, folder)
    return folder


@pytest.fixture(scope="module")
def another(mimo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return another_module(tmp_path_factory.mktemp("apart"), mimo)


@pytest.fixture(scope="module", params=["its own", "another"])
def of_folder(request: pytest.FixtureRequest, another: Path) -> Path | None:
    """Where the module is; ``None``: in the target's files."""
    return None if request.param == "its own" else another


@pytest.fixture(scope="module")
def recorded(
    engines: Engines, mimo: Path, of_folder: Path | None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[int], list[Pass]]:
    own = trees(mimo)
    if of_folder is not None:
        own["speculative_config"]["model"] = str(of_folder)
    return record(engines, tmp_path_factory.mktemp("mtp") / "passes.pt", own)


def test_every_level_of_every_draft_is_that_of_plain_torch(
    mimo: Path, another: Path, of_folder: Path | None, recorded: tuple[list[int], list[Pass]]
) -> None:
    sequence, passes = recorded
    assert sequence[: len(REQUEST["ids"])] == REQUEST["ids"]
    replay, other = Replay(module(mimo, of_folder)), Replay(module(mimo, another if of_folder is None else None))
    made = drafts(passes)
    assert len(made) >= 5
    for first, levels in made:
        replay.draft(accepted(first, levels), levels)
    assert replay.largest < 1e-3
    first, levels = made[0]
    with pytest.raises(AssertionError):
        other.draft(accepted(first, levels), levels)
