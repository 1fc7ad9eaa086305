"""Trees that requests bring, on the real engine: the tokens of plain decoding, and rows that are the drafter's own; the
faults below must break that."""

import asyncio
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engine.conftest import ROOMY, ROUND, TIGHT_FOR_TREES, Result, any_sizes, moa, run_apart
from tests.engine.test_lossless import FEW, differing
from tests.engine.workload import MOA, TARGET
from tests.unit.test_client_bundle import paths
from vllm_specext.engine.requests import CLIENT_TREE
from vllm_specext.methods.moa.checkpoint import read_shape, read_tensors
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.remote.device import bundle as bundles
from vllm_specext.remote.device.make_bundle import make
from vllm_specext.remote.device.moa_drafter import MoAClientDrafter
from vllm_specext.remote.rows import FLOAT16, RowFormat
from vllm_specext.training.moa.target import target_states
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.calibration import FIRST, UP_TO, Learned

Engines = Callable[..., Result]
CLIENTS = moa(24, 4, client_drafts=True)
VOCABULARY = 2048
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.9, "repetition_penalty": 1.1},
)
LENGTH = 24


def about(answer: list[int], kind: int, chance: random.Random) -> tuple[list[int], list[int]]:
    """Ids and parents, by ``kind``: a chain of the answer longer than trees are deep, a tree in which the answer is the
    second child of each node, the answer's beginning before nonsense, nonsense, or nothing."""
    other = [(token + 1 + chance.randrange(VOCABULARY - 1)) % VOCABULARY for token in answer]
    if kind == 1:
        ids = [token for pair in zip(other[:6], answer[:6], strict=True) for token in pair]
        return ids, [parent for level in range(len(ids) // 2) for parent in (2 * level, 2 * level)]
    chain = (answer[:20], [], answer[:2] + other[2:5], other[:6], [])[kind]
    return chain, list(range(len(chain)))


KINDS = 5


def bringing(asked: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same requests with trees of every kind; each fourth is no client's."""
    chance = random.Random(1)
    made = []
    for index, (one, answer) in enumerate(zip(asked, answers, strict=True)):
        ids, parents = about(answer["ids"], index % KINDS, chance)
        brought = {"ids": ids, "parents": parents, "first_row": 0, "kind": "int8", "ticket": f"ticket {index}"}
        extra = {} if index % 4 == 3 else {CLIENT_TREE: brought}
        sampling = one["sampling"] | {"extra_args": one["sampling"].get("extra_args", {}) | extra}
        made.append(one | {"sampling": sampling})
    return made


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


def accepted(result: Result) -> float:
    return float(result["counters"]["vllm:spec_decode_num_accepted_tokens"])


@pytest.mark.parametrize(
    ("llm", "asynchronous"),
    [
        ({}, True),
        pytest.param(TIGHT_FOR_TREES, False, marks=pytest.mark.extended),
        pytest.param({}, False, marks=pytest.mark.extended),
        pytest.param(TIGHT_FOR_TREES, True, marks=pytest.mark.extended),
    ],
    ids=["roomy-async", "tight-sync", "roomy-sync", "tight-async"],
)
def test_brought_trees_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, llm: dict[str, Any], asynchronous: bool
) -> None:
    asked = bringing(ROUND, plain["outputs"][: len(ROUND)])
    result = engines(CLIENTS | llm, rounds=[asked], keep_async=asynchronous)
    assert result["async"] == asynchronous
    assert differing(result, {"outputs": plain["outputs"][: len(ROUND)]}) == []
    if llm:
        assert result["counters"]["vllm:num_preemptions"] >= 1
    else:
        # Chains of up to 20 after their first token: the server's trees have 24 nodes, and six levels.
        assert any(12 < int(size) < 20 for size in result["sizes"])
        assert accepted(result) > 60


@pytest.mark.parametrize("asynchronous", [pytest.param(False, marks=pytest.mark.extended), True], ids=["sync", "async"])
def test_others_are_drafted_any_number_of_tokens_beside_brought_trees(
    engines: Engines, plain: Result, asynchronous: bool
) -> None:
    asked = bringing(ROUND, plain["outputs"][: len(ROUND)])
    result = engines(any_sizes(CLIENTS), rounds=[asked], keep_async=asynchronous, sabotage="draw_sizes")
    assert differing(result, {"outputs": plain["outputs"][: len(ROUND)]}) == []
    assert len(result["sizes"]) > 4
    assert accepted(result) > 60


def test_a_wrong_mask_of_brought_trees_is_noticed(engines: Engines, plain: Result) -> None:
    asked = bringing(FEW, plain["outputs"][: len(FEW)])
    faulty = engines(CLIENTS, rounds=[asked], sabotage="flip_an_ancestor_bit")
    assert differing(faulty, {"outputs": plain["outputs"][: len(FEW)]}) != []


def asked_of(count: int) -> list[dict[str, Any]]:
    """Requests as clients may send them."""
    return [
        {"ids": ROUND[index % len(ROUND)]["ids"], "sampling": SAMPLING[index % len(SAMPLING)] | {"seed": 500 + index}}
        for index in range(count)
    ]


@pytest.fixture(scope="module")
def answers(engines: Engines) -> list[list[int]]:
    asked = [one | {"sampling": one["sampling"] | {"max_tokens": LENGTH}} for one in asked_of(40)]
    return [output["ids"] for output in engines({}, rounds=[asked])["outputs"]]


def in_sessions(folder: Path, answers: list[list[int]], **how: Any) -> Result:
    files = [folder / "spec.json", folder / "out.json"]
    knows = (0.7, 1.0, 0.7, 0.0)
    sessions = [
        one | {"answer": answer, "max_tokens": LENGTH, "knows": knows[index % 4]}
        for index, (one, answer) in enumerate(zip(asked_of(len(answers)), answers, strict=True))
    ]
    files[0].write_text(json.dumps({"llm": ROOMY | CLIENTS, "sessions": sessions} | how))
    run_apart("tests.engine.client_sessions", files, folder / "engine")
    result: Result = json.loads(files[1].read_text())
    return result


def reference_rows(tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values ``[T, H, D]`` that the plain drafter makes of a text, by transformers' forward of the target."""
    target = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    drafter = MoADrafter(read_shape(MOA))
    drafter.load_state_dict(read_tensors(MOA))
    text = torch.tensor([tokens])
    with torch.no_grad():
        states = target_states(target, text, torch.ones_like(text, dtype=torch.bool), 0)
        keys, values = drafter.float().absorb(states.kv, torch.arange(len(tokens))[None])
    return keys[0].transpose(0, 1), values[0].transpose(0, 1)


@pytest.fixture(scope="module")
def with_cuts(tmp_path_factory: pytest.TempPathFactory, answers: list[list[int]]) -> Result:
    return in_sessions(
        tmp_path_factory.mktemp("cuts"), answers, kind="float16", preset="5g", cut=True, drafted=drafted_for(200)
    )


def drafted_for(count: int) -> list[list[int]]:
    """Beginnings of prompts."""
    chance = random.Random(2)
    whole = [one["ids"] for one in ROUND if len(one["ids"]) > 20]
    return [ids[: chance.randrange(8, len(ids))] for ids in chance.choices(whole, k=count)]


def test_forty_sessions_over_a_link_that_is_cut_have_the_tokens_of_plain_decoding(
    with_cuts: Result, answers: list[list[int]]
) -> None:
    sessions = with_cuts["sessions"]
    assert [index for index, (one, ids) in enumerate(zip(sessions, answers, strict=True)) if one["ids"] != ids] == []
    assert all(one["exact"] for one in sessions)
    assert accepted(with_cuts) > 200
    assert sum(one["calls"] for one in sessions) < 0.8 * sum(map(len, answers))
    assert with_cuts["kept"] == 0


@pytest.mark.extended
@pytest.mark.parametrize("preset", ["4g", "base", "lan"])
def test_forty_sessions_over_other_links_have_the_tokens_of_plain_decoding(
    tmp_path: Path, answers: list[list[int]], preset: str
) -> None:
    found = in_sessions(tmp_path, answers, kind="int8", preset=preset, cut=True)["sessions"]
    assert [one["ids"] for one in found] == answers
    assert all(one["exact"] for one in found)


def test_rows_are_what_the_plain_drafter_makes_of_the_text(with_cuts: Result) -> None:
    for session in with_cuts["sessions"][:4]:
        keys, values = (torch.tensor(side) for side in session["rows"])
        assert len(session["whole"]) - 25 <= len(keys) < len(session["whole"])
        for found, made in zip((keys, values), reference_rows(session["whole"]), strict=True):
            # A row of float16 has eleven bits.
            assert torch.allclose(found, made[: len(found)], rtol=1e-3, atol=2e-3)


def test_a_client_drafts_the_servers_trees(with_cuts: Result, tmp_path: Path) -> None:
    """The rows have been rounded to float16, so that a tie may be decided otherwise."""
    make(str(TARGET), MOA, tmp_path / "bundle", torch.float32)
    bundle = bundles.read(tmp_path / "bundle")
    model = bundles.drafter_of(tmp_path / "bundle", bundle)._model
    trees = with_cuts["trees"]
    same = 0
    for tree in trees:
        learned = Learned(torch.full((len(FIRST),), math.log(tree["sharpness"])), torch.tensor(UP_TO))
        drafter = MoAClientDrafter(model, bundle.self_attention, bundle.cross_attention, TreeShape(24, 6, 4), learned)
        drafter.take(0, *RowFormat(*bundle.row_heads, FLOAT16).unpack(bytes.fromhex(tree["rows"])))
        drafted = asyncio.run(drafter.draft(tree["text"], 24))
        same += paths(drafted.ids.tolist(), drafted.parents.tolist()) == paths(tree["ids"], tree["parents"])
    assert len(trees) == 200
    assert same >= 190


def test_a_wrong_mask_is_noticed_in_sessions(tmp_path: Path, answers: list[list[int]]) -> None:
    how = {"kind": "int8", "preset": "lan", "cut": False, "sabotage": "flip_an_ancestor_bit"}
    found = in_sessions(tmp_path, answers[:12], **how)["sessions"]
    assert [one["ids"] for one in found] != answers[:12]
