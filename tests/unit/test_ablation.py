"""The comparison of drafters that were trained alike but for one thing: rows, statistics, what is shown, resumption."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.ablation import __main__ as ablation
from benchmarks.ablation import report, runs
from benchmarks.ablation.comparison import Counts, difference, interval, tokens_per_verification
from benchmarks.ablation.rows import BY_NAME, ROWS, Row, in_turns
from tests.unit.docs_pages import ROOT
from vllm_specext.errors import ConfigurationError

REFERENCES = [row for row in ROWS if row.reference is None]
NAMING = {"name", "label", "reference", "turn"}


def test_each_row_differs_from_its_reference_by_one_thing() -> None:
    assert len(BY_NAME) == len(ROWS)
    for row in ROWS:
        if row.reference is not None:
            reference = BY_NAME[row.reference]
            assert reference in REFERENCES
            names = {field.name for field in fields(Row)} - NAMING
            assert len([name for name in names if getattr(row, name) != getattr(reference, name)]) == 1, row.name
            assert reference.turn <= row.turn


def test_rows_of_a_turn_get_their_seeds_together() -> None:
    rows = [BY_NAME[name] for name in ("griffin-1-pass", "eagle3", "eagle3-tat")]
    order = [(row.name, seed) for row, seed in in_turns(rows, 2)]
    assert order[:4] == [("eagle3", 0), ("eagle3-tat", 0), ("eagle3", 1), ("eagle3-tat", 1)]
    assert order[4:] == [("griffin-1-pass", 0), ("griffin-1-pass", 1)]


# Statistics, on made counts: prompts of 30 verifications that are as different as real ones.


def made(
    more: float, noise: float = 0.0, seeds: int = 3, prompts: int = 100, by_seed: tuple[float, ...] = ()
) -> Counts:
    """Every prompt accepts ``more`` tokens a verification than the same prompt does with ``more`` 0, but for
    ``noise``, and but for what each seed adds."""
    hard = np.random.default_rng(1).normal(2, 0.5, prompts)
    own = np.random.default_rng(2 if more else 3).normal(0, 1, (seeds, prompts))
    shifts = np.array(by_seed or (0.0,) * seeds)
    accepted = np.round(30 * (hard + more + noise * own + shifts[:, None])).astype(np.int64)
    return np.stack((np.full_like(accepted, 30), accepted), axis=-1)


@pytest.mark.parametrize("more", [-0.3, 0.1])
def test_a_difference_of_all_prompts_is_seen_though_prompts_differ_far_more(more: float) -> None:
    found = difference(made(more, noise=0.1), made(0.0, noise=0.1))
    assert found.seen
    assert found.value == pytest.approx(more, abs=0.03)
    assert found.low < more < found.high
    low, high = interval(made(0.0))
    assert high - low > 0.15  # as far as prompts tell, the figure itself is far less certain
    assert found.high - found.low < 0.1


def test_no_difference_is_seen_where_there_is_none() -> None:
    found = difference(made(1e-9, noise=0.5), made(0.0, noise=0.5))
    assert not found.seen
    assert found.low < 0 < found.high


def test_a_small_difference_is_none_however_sure() -> None:
    found = difference(made(0.04), made(0.0))
    assert found.low > 0
    assert not found.seen


def test_a_difference_of_one_prompt_is_not_seen() -> None:
    counts, reference = made(0.0), made(0.0)
    counts[:, 7, 1] += 30 * 10
    found = difference(counts, reference)
    assert found.value == pytest.approx(0.1)
    assert not found.seen


def test_a_difference_of_one_seed_is_not_seen() -> None:
    reference = made(0.0)
    assert not difference(made(0.0, by_seed=(0.6, -0.05, -0.05)), reference).seen
    assert difference(made(0.0, by_seed=(0.2, 0.15, 0.15)), reference).seen


def test_other_prompts_or_seeds_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="expected the same"):
        difference(made(0.0, seeds=2), made(0.0))


def test_a_figure_is_over_all_verifications() -> None:
    counts = np.array([[[10, 5], [30, 35]], [[20, 20], [20, 20]]])
    assert tokens_per_verification(counts) == 2.0
    low, high = interval(counts)
    assert 1.5 <= low < 2 < high <= 1 + 35 / 30


# Runs, without training: each takes a minute and accepts as many tokens as the row has letters.


def run_of(row: Row, seed: int, *, steps: tuple[int, ...] = (1,)) -> dict[str, Any]:
    same = {
        "steps": list(steps),
        "learning_rates": [0.1],
        "tokens_per_step": 8,
        "text": {"rows": 1},
        "prompts": {"code": 4},
    }
    counts = [(10, 10 + len(row.name) + prompt) for prompt in range(4)]
    return {"row": row.name, "seed": seed, **same, "of_each_prompt": counts, "log": [], "minutes": 1.0, "versions": {}}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The runs that were made, in order."""
    made: list[tuple[str, int]] = []

    def make(row: Row, seed: int, *_: object) -> dict[str, Any]:
        if ("broken", len(made)) in made:
            raise KeyboardInterrupt
        made.append((row.name, seed))
        return run_of(row, seed)

    monkeypatch.setattr(ablation, "make", make)
    monkeypatch.setattr(ablation, "prepare", lambda *_: ([], {}))
    monkeypatch.setattr(ablation.LlamaForCausalLM, "from_pretrained", lambda _: ablation.torch.nn.Linear(1, 1))
    return made


def benchmark(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    given = ["--work", str(folder / "work"), "--output", str(folder), "--rows", "eagle3", "eagle3-tat", *arguments]
    monkeypatch.setattr("sys.argv", ["ablation", *given])
    ablation.main()


def test_what_is_there_is_not_made_again(
    trained: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark(tmp_path, monkeypatch, "--runs", "1", "--seeds", "2")
    assert trained == [("eagle3", 0)]
    assert "run 1 of 1: eagle3, seed 0\n" in capsys.readouterr().out
    kept = (tmp_path / "eagle3-0.json").read_bytes()
    benchmark(tmp_path, monkeypatch, "--seeds", "2")
    assert trained == [("eagle3", 0), ("eagle3-tat", 0), ("eagle3", 1), ("eagle3-tat", 1)]
    assert "run 1 of 3: eagle3-tat, seed 0, about 3 minutes left" in capsys.readouterr().out
    assert (tmp_path / "eagle3-0.json").read_bytes() == kept
    benchmark(tmp_path, monkeypatch, "--seeds", "2")
    assert len(trained) == 4
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_leaves_nothing_and_is_made_again(
    trained: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained.append(("broken", 2))
    with pytest.raises(KeyboardInterrupt):
        benchmark(tmp_path, monkeypatch, "--seeds", "1")
    assert [path.name for path in tmp_path.iterdir()] == ["eagle3-0.json"]
    trained.remove(("broken", 2))
    benchmark(tmp_path, monkeypatch, "--seeds", "1")
    assert trained == [("eagle3", 0), ("eagle3-tat", 0)]


def test_runs_under_other_conditions_are_refused(
    trained: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs.write(tmp_path, BY_NAME["eagle3"], 0, run_of(BY_NAME["eagle3"], 0, steps=(2,)))
    with pytest.raises(
        ConfigurationError, match=r"^eagle3-tat, seed 0, has steps \[1\], but eagle3, seed 0, has \[2\]"
    ):
        benchmark(tmp_path, monkeypatch)
    assert not (tmp_path / "eagle3-tat-0.json").exists()


def test_a_row_is_compared_over_the_seeds_that_its_reference_has(tmp_path: Path) -> None:
    reference, row = BY_NAME["eagle3"], BY_NAME["eagle3-tat"]
    for seed in (0, 1):
        runs.write(tmp_path, reference, seed, run_of(reference, seed))
    for seed in (1, 2):
        runs.write(tmp_path, row, seed, run_of(row, seed))
    found = runs.read(tmp_path, ROWS)
    assert report.cells(found, reference)[-2:] == ["reference", ""]
    # A row of one seed is compared, but not judged.
    assert report.cells(found, row)[-2:] == ["+0.40 (+0.40 to +0.40)", "one seed"]
    runs.write(tmp_path, reference, 2, run_of(reference, 2))
    found = runs.read(tmp_path, ROWS)
    # Four letters more in ten verifications.
    assert report.cells(found, row) == [
        row.label,
        "2",
        "3.15 (3.05 to 3.25)",
        "3.15, 3.15",
        "+0.40 (+0.40 to +0.40)",
        "better",
    ]
    assert report.cells(found, BY_NAME["griffin"]) == ["GRIFFIN", "0", "not run", "", "", ""]


def test_the_table_shows_all_rows_before_any_has_been_run(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    ablation.show(tmp_path, console)
    assert console.export_text().count(report.NOT_RUN) == len(ROWS)
    assert not list(tmp_path.iterdir())


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    row = BY_NAME["griffin"]
    runs.write(tmp_path, row, 3, run_of(row, 3))
    runs.write(tmp_path, BY_NAME["griffin-top-1"], 0, run_of(BY_NAME["griffin-top-1"], 0))
    assert set(runs.read(tmp_path, [row])) == {("griffin", 3)}  # and not that of a longer name
    assert runs.read(tmp_path, [row])["griffin", 3] == json.loads(json.dumps(run_of(row, 3)))


def test_the_committed_runs_are_of_one_benchmark_and_of_the_same_prompts() -> None:
    """`read` refuses others."""
    committed = runs.read(ROOT / "benchmarks" / "results" / "cpu" / "ablation", ROWS)
    assert ("eagle3", 0) in committed
    for (name, seed), run in committed.items():
        assert (run["row"], run["seed"]) == (name, seed)
        assert len(run["of_each_prompt"]) == sum(run["prompts"].values())
        assert [entry["stage"] for entry in run["log"]] == [1, 2, 3]
        assert {len(entry["token"]) for entry in run["log"]} == set(range(1, BY_NAME[name].passes + 1))
