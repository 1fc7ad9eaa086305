"""What is captured while the engine answers is what transformers computes of the same tokens: at every position of
prompts and answers, with prompts in pieces, with preemptions, and of EAGLE-3's layers too."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.engine.capturing import TARGET_NAME
from tests.engine.conftest import TIGHT, Engines, Result, run_apart
from tests.engine.workload import TARGET, requests
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.shard_rows import ShardRows, find_shards

SAMPLING = {"temperature": 1.0, "seed": 7}
AUX_LAYERS = [2, 6, 9]
ASKED = [one for one in requests(24) if len(one["ids"]) > 1]
FIRST = [{"name": f"turn-{number}", "ids": one["ids"], "max_tokens": 40} for number, one in enumerate(ASKED[:16])]
GIVEN = [one["ids"] for one in ASKED[16:]]
SECOND = [{"name": f"next-{n}", "after": f"turn-{n}", "ids": ASKED[-n]["ids"][:30], "max_tokens": 12} for n in (1, 3)]
ENGINE: dict[str, Any] = {
    "target": str(TARGET),
    "max_length": 511,
    "conversations": 8,
    "feature_dtype": "float32",
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 8,
    "block_size": 32,
    "kv_cache_memory_bytes": 128 << 20,
}
CLOSE = 1e-4


def captured(folder: Path, llm: dict[str, Any], **switches: Any) -> Result:
    """What an engine writes to ``folder``, which has the shard too."""
    spec: dict[str, Any] = {"llm": ENGINE | llm, "rounds": [FIRST, SECOND], "given": GIVEN, "sampling": SAMPLING}
    files = folder / "spec.json", folder / "out.json"
    files[0].write_text(json.dumps(spec | switches | {"folder": str(folder)}))
    run_apart("tests.engine.capturing", list(files), folder / "engine", "tensor_parallel_size" in llm)
    result: Result = json.loads(files[1].read_text())
    return result


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("roomy")
    return folder, captured(folder, {}, keep_async=True)


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Prompts in pieces of 48 tokens at most, and a cache that not all requests fit into."""
    folder = tmp_path_factory.mktemp("tight")
    return folder, captured(folder, TIGHT | {"aux_layers": AUX_LAYERS})


@pytest.fixture(scope="module")
def target() -> Any:
    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)


def rows_in(folder: Path) -> list[FeatureRow]:
    shards = find_shards(folder, TARGET_NAME)
    return ShardRows(shards, seed=0).read(range(sum(map(len, shards))))


def states_of(target: Any, token_ids: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        found: tuple[Tensor, ...] = target.base_model(token_ids[None].long(), output_hidden_states=True).hidden_states
    return found


def known(row: FeatureRow) -> int:
    """Positions of ``row`` from the first on that have states; a last one without any has zeros."""
    count = int(row.features.any(dim=-1).sum())
    assert count >= len(row.token_ids) - 1
    assert row.aux is None or row.aux.any(dim=-1).tolist() == row.features.any(dim=-1).tolist()
    return count


def furthest(target: Any, rows: list[FeatureRow]) -> float:
    """The largest difference between captured features and those of transformers."""
    return max(
        float((row.features - states_of(target, row.token_ids)[-1][0])[: known(row)].abs().max()) for row in rows
    )


def furthest_of_layers(target: Any, rows: list[FeatureRow], layers: list[int]) -> float:
    """The same for the inputs of ``layers``, as a share of the largest number where that is above 1."""
    found = []
    for row in rows:
        assert row.aux is not None
        states = states_of(target, row.token_ids)
        expected = torch.cat([states[layer][0] for layer in layers], dim=-1)
        found.append(float((row.aux - expected)[: known(row)].abs().max()) / max(1, float(expected.abs().max())))
    return max(found)


def fed(result: Result) -> dict[tuple[int, ...], int]:
    """The rows, and how many tokens of each were inputs of the target: all but the last one sampled, if no turn came
    after."""
    followed = {turn["after"] for turn in SECOND}
    return {tuple(ids): len(ids) - (key not in followed) for key, ids in result["rows"].items()} | {
        tuple(ids): len(ids) for ids in GIVEN
    }


@pytest.mark.parametrize("engine", ["roomy", pytest.param("tight", marks=pytest.mark.extended)])
def test_all_positions_have_the_features_of_a_transformers_forward(
    engine: str, target: Any, request: pytest.FixtureRequest
) -> None:
    folder, result = request.getfixturevalue(engine)
    assert result["v2"]
    assert result["async"] == (engine == "roomy")
    assert (result["preemptions"] > 0) == (engine == "tight")
    assert result["missing"] == []
    assert result["kept"] == []  # what is over is forgotten, with the steps that were under way when it ended
    rows = rows_in(folder)
    assert len(rows) == len(FIRST) + len(SECOND) + len(GIVEN)
    assert {tuple(row.token_ids.tolist()): known(row) for row in rows} == fed(result)
    assert furthest(target, rows) < CLOSE
    prompts = {tuple(ids): result["prompts"][key] for key, ids in result["rows"].items()} | dict.fromkeys(
        map(tuple, GIVEN), 0
    )
    for row in rows:
        ids = tuple(row.token_ids.tolist())
        assert row.loss_mask.tolist() == [0] * prompts[ids] + [1] * (len(ids) - prompts[ids])
    assert max(len(row.token_ids) for row in rows) > TIGHT["max_num_batched_tokens"] * 2


def test_layers_states_are_those_of_transformers(tight: tuple[Path, Result], target: Any) -> None:
    assert furthest_of_layers(target, rows_in(tight[0]), AUX_LAYERS) < CLOSE


def test_the_answers_are_those_of_plain_decoding(roomy: tuple[Path, Result], engines: Engines) -> None:
    """Sampled with the same seed; with another one they are others."""
    common = SAMPLING | {"max_tokens": FIRST[0]["max_tokens"], "stop_token_ids": [0, 3]}
    rounds = [[{"ids": one["ids"], "sampling": common | {"seed": seed}} for one in FIRST] for seed in (7, 8)]
    outputs = [output["ids"] for output in engines({}, rounds=rounds)["outputs"]]
    answers = [roomy[1]["rows"][one["name"]][len(one["ids"]) :] for one in FIRST]
    assert answers == outputs[: len(FIRST)]
    assert answers != outputs[len(FIRST) :]


def test_states_one_position_too_late_are_noticed(tmp_path: Path, target: Any) -> None:
    captured(tmp_path, {}, rounds=[FIRST[:4]], given=[], sabotage="shift_states")
    assert furthest(target, rows_in(tmp_path)) > 100 * CLOSE


def test_what_had_no_room_is_read_again(tmp_path: Path, target: Any) -> None:
    result = captured(tmp_path, {"conversations": 1, "max_num_batched_tokens": 128}, rounds=[FIRST])
    assert result["missing"] == []
    rows = rows_in(tmp_path)
    found = [tuple(row.token_ids.tolist()) for row in rows]
    answered = [tuple(ids) for ids in result["rows"].values()]
    assert len(find_shards(tmp_path)) > 2
    assert len(found) == len(FIRST) + len(GIVEN)
    assert set(answered) <= set(found)
    assert furthest(target, rows) < CLOSE


def test_what_had_no_room_beside_turns_that_run_is_read_again(tmp_path: Path, target: Any) -> None:
    """Those have to let their states go, and are read again, too."""
    longest = sorted(ASKED, key=lambda one: len(one["ids"]))[-3:]
    running = [{"name": f"long-{n}", "ids": one["ids"][:100], "max_tokens": 235 + n} for n, one in enumerate(longest)]
    small = {"conversations": 1, "max_num_batched_tokens": 128}  # room for 1022 tokens, of which those take 1005
    given, endless = [one["ids"] for one in longest], SAMPLING | {"ignore_eos": True}
    result = captured(tmp_path, small, rounds=[], running=running, given=given, sampling=endless)
    assert (result["missing"], result["kept"]) == ([], [])
    rows = rows_in(tmp_path)
    assert len(rows) == len(given) + len(running)
    assert furthest(target, rows) < CLOSE


def test_what_is_abandoned_is_forgotten_and_in_nobodys_way(tmp_path: Path, target: Any) -> None:
    long = [one | {"name": f"long-{number}", "max_tokens": 4 + 100 * number} for number, one in enumerate(ASKED[8:12])]
    result = captured(tmp_path, {}, rounds=[FIRST[:4]], given=GIVEN[:2], abandoned=long)
    assert (result["missing"], result["kept"]) == ([], [])
    rows = rows_in(tmp_path)
    assert len(rows) == 6
    assert furthest(target, rows) < CLOSE


def test_rows_with_a_gap_are_dropped_and_counted(tmp_path: Path, target: Any) -> None:
    result = captured(tmp_path, {}, rounds=[FIRST], given=[], sabotage="lose_a_row")
    lost = result["missing"]
    rows = rows_in(tmp_path)
    assert 0 < len(lost) < len(FIRST)
    assert len(rows) == len(FIRST) - len(lost)
    assert furthest(target, rows) < CLOSE


@pytest.mark.extended
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a rank needs a core of its own")
def test_the_first_of_two_ranks_writes_the_states(tmp_path: Path, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    two = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    result = captured(tmp_path, two, rounds=[FIRST[:6]], given=GIVEN[:2])
    assert result["missing"] == []
    assert furthest(target, rows_in(tmp_path)) < CLOSE
