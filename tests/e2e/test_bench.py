"""``vllm-specext bench`` as a user calls it: its figures hold together, within the time that is promised."""

import base64
import csv
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from vllm_specext.bench.configurations import VLLM_TLI
from vllm_specext.measure.bundled import GRIFFIN_TREE
from vllm_specext.measure.plain import STOCK, has_stock_row
from vllm_specext.measure.server import Server

QUICK_SECONDS = 600


def bench(*arguments: str, output: Path) -> dict[str, Any]:
    """What the JSON says, after a look at the other files."""
    arguments = ("bench", *arguments, f"--output={output}")
    done = forks.run_command(*arguments, environment=os.environ, streams=output / "bench")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return checked(arguments[1], output)


def checked(name: str, output: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((output / f"{name}.json").read_text())
    with (output / f"{name}.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(results["rows"])
    pictures = list(output.glob("*.png"))
    assert pictures
    page = (output / f"{name}.md").read_text()
    assert all(f"({picture.name})" in page for picture in pictures)
    # vLLM's own kernels round otherwise.
    assert all(row["identical"] for row in results["rows"] if row["method"] != STOCK and row["same_tokens_promised"])
    # The page in one file has the pictures in it.
    whole = (output / f"{name}.html").read_text()
    assert all(base64.b64encode(picture.read_bytes()).decode() in whole for picture in pictures)
    return results


STOCK_FIRST = [STOCK] if has_stock_row() else []


@pytest.mark.extended
def test_a_sweep_compares_a_tree_with_plain_decoding_and_vllms_own(tmp_path: Path) -> None:
    small = ("--rounds", "1", "--concurrency", "2", "--tokens", "24", "--prompts-per-task", "2")
    config = f"tree={json.dumps(GRIFFIN_TREE)}"
    rows = bench("sweep", *small, "--config", config, "--nodes", "24", output=tmp_path)["rows"]
    found = {(row["method"], row["num_speculative_tokens"]): row for row in rows}
    assert list(found) == [
        *((name, None) for name in STOCK_FIRST),
        ("plain", None),
        ("ngram", 4),
        ("eagle3", 4),
        ("eagle3-tree", 24),
        ("tree", 24),
    ]
    assert "spec_decode_num_drafts" not in found["plain", None]
    assert found["eagle3", 4]["spec_decode_acceptance_length"] > 1.5
    for name in ("eagle3-tree", "tree"):
        row = found[name, 24]
        # The context's end cuts a draft, nothing makes it larger.
        assert 0.8 * 24 < row["spec_decode_draft_tokens"] / row["spec_decode_num_drafts"] <= 24
        assert row["spec_decode_acceptance_length"] > 2
        assert len(row["spec_decode_per_position_acceptance_rates"]) == GRIFFIN_TREE["tree_depth"]


def chats(folder: Path) -> Path:
    """A file as SPEED-Bench's ``prepare.py`` writes them, with texts of our own."""
    file = folder / "qualitative.jsonl"
    asked = (("coding", "What does numpy.zeros do?", "And numpy.ones?"), ("writing", "What does torch.save do?"))
    rows = [
        {"question_id": task, "category": task, "messages": [{"role": "user", "content": turn} for turn in turns]}
        for task, *turns in asked
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.slow
def test_chats_of_several_turns_get_the_tokens_of_plain_decoding_greedily_and_drawn(tmp_path: Path) -> None:
    given = ("--prompts", str(chats(tmp_path)), "--temperature", "0", "--temperature", "1", "--top-p", "0.95")
    configs = ("--config", f"tree={json.dumps(GRIFFIN_TREE)}", "--config", f"vllm-tli={json.dumps(VLLM_TLI)}")
    results = bench("acceptance", *given, "--quick", "--tokens", "16", *configs, output=tmp_path)
    assert results["prompts"]["counted_by_task"] == {"coding": 2, "writing": 1}
    rows = {(row["method"], row["temperature"]): row for row in results["rows"] if row["task"] == "all"}
    assert {method for method, _ in rows} == {"plain", "ngram", "eagle3", "eagle3-tree", "tree", "vllm-tli"}
    promised = {key for key, row in rows.items() if row["same_tokens_promised"]}
    assert {("plain", 1), ("tree", 1), ("eagle3-tree", 1)} <= promised
    assert promised.isdisjoint({("eagle3", 1), ("vllm-tli", 1)})
    assert rows["vllm-tli", 0]["spec_decode_acceptance_length"] > 1
    assert rows["tree", 0]["spec_decode_acceptance_length"] > rows["tree", 1]["spec_decode_acceptance_length"] > 1
    with (tmp_path / "acceptance-by-position.csv").open(newline="") as file:
        (drawn,) = (
            row
            for row in csv.DictReader(file)
            if (row["method"], row["temperature"], row["subset"]) == ("tree", "1.0", "all")
        )
    assert int(drawn["num_drafts"]) == rows["tree", 1]["spec_decode_num_drafts"]
    positions = [float(drawn[f"acceptance_at_pos_{place}"]) for place in range(4)]
    assert float(drawn["acceptance_length"]) == pytest.approx(1 + sum(positions), abs=0.01)


@pytest.mark.slow
def test_running_servers_are_driven_by_vllm_bench_serve(unused: Server, griffin: Server, tmp_path: Path) -> None:
    urls = ("--url", f"plain={unused.url}", "--url", f"griffin={griffin.url}")
    rates = ("--request-rate", "8", "--request-rate", "inf")
    small = ("--tokens", "16", "--prompts-per-task", "2")
    rows = bench("serve", *urls, *rates, *small, output=tmp_path)["rows"]
    assert {(row["method"], row["request_rate"]) for row in rows} == {
        (name, rate) for name in ("plain", "griffin") for rate in (8.0, "inf")
    }
    (drafted,) = (row for row in rows if (row["method"], row["request_rate"]) == ("griffin", "inf"))
    assert drafted["spec_decode_acceptance_length"] > 1.5
    assert drafted["speedup"] > 0
    kept = list((tmp_path / "vllm").glob("*.json"))
    assert len(kept) == 4
    assert all("generated_texts" in json.loads(path.read_text()) for path in kept)


@pytest.mark.extended
def test_latency_starts_its_own_servers(tmp_path: Path) -> None:
    small = ("--rounds", "1", "--tokens", "16", "--prompts-per-task", "1")
    rows = bench("latency", *small, "--config", f"tree={json.dumps(GRIFFIN_TREE)}", output=tmp_path)["rows"]
    assert [row["method"] for row in rows] == [*STOCK_FIRST, "plain", "ngram", "eagle3", "eagle3-tree", "tree"]
    for row in rows:
        assert 0 < row["median_ttft_ms"] < row["median_e2el_ms"]


@pytest.mark.extended
def test_the_quick_sweep_ends_within_ten_minutes(tmp_path: Path) -> None:
    first, *rest = shlex.split("vllm-specext bench sweep --quick --output results")
    begun = time.monotonic()
    subprocess.run([Path(sys.executable).with_name(first), *rest], cwd=tmp_path, check=True)
    assert time.monotonic() - begun < QUICK_SECONDS
    rows = checked("sweep", tmp_path / "results")["rows"]
    methods = {row["method"] for row in rows}
    assert {"plain", "ngram", "eagle3", "eagle3-tree", "griffin-chain", "griffin-tree", "moa-tree"} <= methods
    assert {path.name for path in (tmp_path / "results").iterdir()} == {
        "sweep.json",
        "sweep.csv",
        "sweep-by-position.csv",
        "sweep.md",
        "sweep.html",
        "sweep-speedup-by-concurrency.png",
        "sweep-by-depth.png",
    }
