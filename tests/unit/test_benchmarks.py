"""The benchmarks without an engine: what they make of results."""

import json
import random
import shlex
import statistics
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cache_memory, chosen_drafts, own_process
from tests.unit.docs_pages import ROOT, blocks
from tests.unit.terminal import shown_on_80_columns

RESULTS = ROOT / "benchmarks" / "results"


def test_what_an_engine_prints_last_comes_back_and_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[str, Any] = {"returncode": 0, "stdout": 'a log line\n{"tokens": [1]}\n', "stderr": ""}

    def run(command: list[str], **kwargs: Any) -> Any:
        assert command[1:] == ["-m", "benchmarks.foreign", "--one", "null"]
        assert kwargs["env"]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        return types.SimpleNamespace(**ran)

    monkeypatch.setattr(own_process.subprocess, "run", run)
    assert own_process.in_own_process("benchmarks.foreign", "plain", None) == {"tokens": [1]}
    ran |= {"returncode": 1, "stderr": "out of memory"}
    with pytest.raises(SystemExit, match=r"^plain: the engine ended\.\nout of memory$"):
        own_process.in_own_process("benchmarks.foreign", "plain", None)


# Memory of the cache.


def cache(blocks_outermost: bool) -> Any:
    """Two layers of 64 bytes a token and one of 128, 10 blocks of 4 tokens."""
    small, large, blocks = 4 * 64, 4 * 128, 10
    size = blocks * (2 * small + large)
    strides = (
        ((small, 2 * small + large), (large, 2 * small + large))
        if blocks_outermost
        else ((small * blocks, small), (large * blocks, large))
    )
    tensors = [
        types.SimpleNamespace(size=size, layers=layers, layer_stride=layer, block_stride=block)
        for layers, (layer, block) in zip((["a", "b"], ["c"]), strides, strict=True)
    ]
    group = types.SimpleNamespace(layer_names=["a", "b", "c"], kv_cache_spec=types.SimpleNamespace(block_size=4))
    return types.SimpleNamespace(num_blocks=blocks, kv_cache_tensors=tensors, kv_cache_groups=[group])


@pytest.mark.parametrize("blocks_outermost", [False, True])
def test_layers_bytes_are_read_from_either_layout(blocks_outermost: bool) -> None:
    assert cache_memory.bytes_per_token(cache(blocks_outermost)) == {"a": 64, "b": 64, "c": 128}


def test_layers_that_do_not_fill_the_allocation_are_an_error() -> None:
    config = cache(False)
    config.kv_cache_tensors[1].layers = ["c", "d"]
    with pytest.raises(RuntimeError, match="a token takes 256 bytes, but its layers 384"):
        cache_memory.bytes_per_token(config)


def test_what_a_drafter_adds_is_what_the_target_alone_lacks() -> None:
    found = cache_memory.rows({"plain": {"a": 64, "b": 64}, "moa": {"a": 64, "b": 64, "c": 32}})
    assert (found[0]["target_bytes_per_token"], found[0]["drafter_bytes_per_token"]) == (128, 32)
    assert found[0]["drafter_share"] == 0.25
    shown = shown_on_80_columns(cache_memory.table(found))
    assert "25.0%" in shown
    assert "…" not in shown


def test_llama_3_8bs_cache_by_hand() -> None:
    found = [row for row in cache_memory.rows({"plain": {}}) if row["target"].startswith("Llama 3 8B")]
    assert {row["drafter"]: row["drafter_bytes_per_token"] for row in found} == {"griffin": 16 << 10, "moa": 4 << 10}
    assert all("arithmetic" in row["origin"] for row in found)


# Files.


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: path.name)
def test_results_name_no_place_on_a_machine(path: Path) -> None:
    def strings(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            value = [*value, *value.values()]
        if isinstance(value, list):
            for one in value:
                yield from strings(one)
        elif isinstance(value, str):
            yield value

    assert not [one for one in strings(json.loads(path.read_text())) if one.startswith(("/", "~", "file:"))]


BY_BENCH = sorted(path for path in RESULTS.rglob("*.json") if "benchmark" in json.loads(path.read_text()))


@pytest.mark.parametrize("path", BY_BENCH, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_page_has_the_command_for_every_result_of_bench(path: Path) -> None:
    commands = [shlex.split(command) for block in blocks("sh") for command in block.commands]
    given = [
        words
        for words in commands
        if words[:3] == ["vllm-specext", "bench", path.stem]
        and path.parent == ROOT / words[1 + words.index("--output")]
    ]
    assert len(given) == 1
    named = {
        words.partition("=")[0] for option, words in zip(given[0], given[0][1:], strict=False) if option == "--config"
    }
    assert named <= {row["method"] for row in json.loads(path.read_text())["rows"]}


def test_there_are_results_of_bench() -> None:
    assert {path.stem for path in BY_BENCH} == {"acceptance", "sweep"}


# Chosen numbers of drafted tokens.


def test_what_is_best_is_found_in_the_other_rounds() -> None:
    seconds = {0: [2.0, 2.0, 2.0], 2: [1.0, 1.1, 3.0], 4: [1.2, 1.2, 0.5]}
    assert chosen_drafts.fastest(seconds) == 2
    # Without its third round 2 is the fastest; without the others, in which it was, 4 is.
    assert chosen_drafts.best_of_others(seconds) == [1.2, 1.2, 3.0]
    assert chosen_drafts.best_of_others({0: [2.0], 2: [1.0]}) == [1.0]


def test_the_best_of_equally_good_numbers_is_no_better_than_another_choice() -> None:
    draw = random.Random(0)
    chosen = [draw.gauss(1, 0.1) for _ in range(3000)]
    numbers = {nodes: [draw.gauss(1, 0.1) for _ in range(3000)] for nodes in range(5)}
    rounds = [{nodes: own[n : n + 5] for nodes, own in numbers.items()} for n in range(0, 3000, 5)]
    ratios = [
        statistics.median(best / own for best, own in zip(bests(each), chosen[5 * place :], strict=False))
        for bests in (chosen_drafts.best_of_others, lambda each: each[chosen_drafts.fastest(each)])
        for place, each in enumerate(rounds)
    ]
    fair, lucky = statistics.mean(ratios[:600]), statistics.mean(ratios[600:])
    assert fair == pytest.approx(1, abs=0.01)
    assert lucky < 0.97
