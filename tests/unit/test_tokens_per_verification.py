"""The benchmark of tokens per verification without engines: what it makes of answers, and when it refuses to."""

import io
import json
import types
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from benchmarks import tokens_per_verification as benchmark
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Answer, Turn
from vllm_specext.options.check import check_sizes, parse
from vllm_specext.registry import METHODS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "cpu" / "tokens_per_verification.json"
DRAFTERS = benchmark.drafters(Path("small"))
TREES = ("eagle3-tree", "griffin", "dflash-tree", "draft-model-tree")
LOOP = [1, 2, 3, 4, 5, 6, 7, 8] * 4


def turn(tokens: list[int], *speculation: Any) -> Turn:
    return Turn([Answer(tokens, 0.1, 0.2, 7)], 0.2, Speculation(*speculation))


PLAIN = [turn(list(range(9))), turn(LOOP), turn(list(range(5)))]
GIVEN = [
    turn(list(range(9)), 10, 80, (9, 5, 0)),
    turn(LOOP, 10, 80, (10, 10, 10)),
    turn(list(range(5)), 30, 240, (10, 6, 0)),
]


def test_loops_do_not_count_and_every_prompts_counts_are_kept() -> None:
    row = benchmark.summary(GIVEN, PLAIN, levels=2)
    assert row["tokens_per_verification"] == 1.75
    assert row["accepted_per_depth"] == [0.475, 0.275]
    assert (row["nodes_per_verification"], row["verifications"]) == (8, 40)
    assert row["of_each_prompt"] == [
        {"verifications": 10, "accepted_per_depth": [9, 5]},
        {"verifications": 30, "accepted_per_depth": [10, 6]},
    ]
    assert row["low"] < row["tokens_per_verification"] < row["high"]


def test_the_interval_is_that_of_prompts_drawn_with_replacement() -> None:
    """Of two prompts both can be the one or both the other, each in a quarter of the draws."""
    few, many = Speculation(10, 40, (10,)), Speculation(30, 120, (90,))
    assert benchmark.interval([few, many]) == (2.0, 4.0)
    assert benchmark.interval([many] * 18) == (4.0, 4.0)
    # Of hundred like these, the mean's standard error is 0.1.
    low, high = benchmark.interval([Speculation(10, 40, (10,)), Speculation(10, 40, (30,))] * 50)
    assert 2.75 < low < 2.85
    assert 3.15 < high < 3.25


# Engines that answer from a list.


class FakeEngine:
    """Drafts as many nodes as it is told to; one token is another one where ``wrong`` says so."""

    told: ClassVar[list[tuple[str, Any, int | None]]] = []
    wrong: ClassVar[tuple[str, int | None]] = ("", None)

    def __init__(self, name: str, arguments: Any, speculative: Any, log: Path) -> None:
        self.name, self.config = name, speculative
        self.facts = {"model_runner": "V2"}

    def __enter__(self) -> "FakeEngine":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def turn(self, prompts: list[list[int]], tokens: int, concurrency: int, nodes: int | None) -> Turn:
        assert concurrency == 1
        self.told.append((self.name, self.config, nodes))
        ((first, *_),) = prompts
        own = [first, (self.name, nodes) == self.wrong]
        if self.name == "plain":
            return turn(own)
        return turn(own, 10, 10 * (nodes or benchmark.CHAIN), (8, nodes or benchmark.CHAIN, 1, 1, 0, 0))


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    monkeypatch.setattr(benchmark, "EngineProcess", FakeEngine)
    monkeypatch.setattr(benchmark, "write_without_layers", lambda *_: None)
    monkeypatch.setattr(benchmark, "Rendering", lambda _: types.SimpleNamespace(ids=lambda prompt: [len(prompt.text)]))
    monkeypatch.setattr(FakeEngine, "told", [])
    monkeypatch.setattr(FakeEngine, "wrong", ("", None))
    return FakeEngine


def ran(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr("sys.argv", ["tokens_per_verification", "--output", str(folder)])
    benchmark.main()
    found: dict[str, Any] = json.loads((folder / "tokens_per_verification.json").read_text())
    return found


def test_each_drafter_is_measured_at_each_size_and_vllms_own_as_a_chain(
    engines: type[FakeEngine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = ran(tmp_path, monkeypatch)
    sizes = ["chain of 4", "tree of 8", "tree of 24", "tree of 59"]
    assert [(row["drafter"], row["draft"]) for row in found["rows"]] == [
        ("eagle3", "chain of 4"),
        *(("eagle3-tree", size) for size in sizes),
        *(("griffin", size) for size in sizes),
        ("dflash", "chain of 4"),
        *(("dflash-tree", size) for size in sizes),
        *(("draft-model-tree", size) for size in sizes),
    ]
    one, four = [2.4], [2.4, 2.8, 4.4, 7.9]
    measured = [row["tokens_per_verification"] for row in found["rows"]]
    assert measured == [*one, *four, *four, *one, *four, *four]
    assert dict.fromkeys((name, nodes) for name, _, nodes in engines.told) == dict.fromkeys(
        [("plain", None), ("eagle3", None), ("dflash", None)]
        + [(name, nodes) for name in TREES for nodes in (4, 8, 24, 59)]
    )
    assert not [row for row in found["rows"] if "/" in row["speculative_config"]]
    assert sum(found["prompts"].values()) == len(engines.told) // len({one[::2] for one in engines.told}) == 24
    assert (tmp_path / "tokens_per_verification.png").read_bytes().startswith(b"\x89PNG")


def test_one_other_token_ends_the_run_in_a_sentence_and_nothing_is_written(
    engines: type[FakeEngine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engines, "wrong", ("griffin", 24))
    with pytest.raises(SystemExit) as ended:
        ran(tmp_path, monkeypatch)
    said = "error: griffin, tree of 24: prompt 1 got other tokens than plain decoding gives."
    assert str(ended.value) == said
    assert not list(tmp_path.iterdir())


def test_a_prompt_with_fewer_tokens_is_refused_too() -> None:
    short = [*GIVEN[:2], turn(list(range(4)), 30, 240, (10, 6))]
    with pytest.raises(ConfigurationError, match="prompt 3 got other tokens"):
        benchmark.check_same("griffin", short, PLAIN)
    benchmark.check_same("griffin", GIVEN, PLAIN)


@pytest.mark.parametrize("nodes", benchmark.SIZES)
@pytest.mark.parametrize("drafter", [one for one in DRAFTERS if one.name in TREES], ids=lambda drafter: drafter.name)
def test_a_users_configuration_drafts_what_the_row_says(drafter: Any, nodes: int) -> None:
    config = benchmark.forced(drafter, nodes).speculative
    assert config is not None
    method = METHODS[config["method"]].options
    options = parse(method, config)
    check_sizes(options, 1024, None)
    shape = benchmark.largest(config["method"])
    default = parse(method, {"method": config["method"], "model": "x"}).tree
    assert options.tree == shape
    assert default == benchmark.PUBLISHED
    assert shape == replace(default, depth=4 if config["method"] == "dflash-tree" else 6)
    ((first, last, drafted),) = config["num_speculative_tokens_per_batch_size"]
    assert (first, drafted) == (1, nodes)
    assert last >= 64


# What is shown of the committed figures.


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def test_the_committed_figures_follow_from_their_counts(committed: dict[str, Any]) -> None:
    assert len(committed["rows"]) == 2 + len(TREES) * len(benchmark.SIZES)
    for row in committed["rows"]:
        counted = [
            Speculation(one["verifications"], 0, tuple(one["accepted_per_depth"])) for one in row["of_each_prompt"]
        ]
        told = sum(counted, Speculation())
        assert len(counted) == sum(committed["prompts"].values()) - committed["looping"]
        assert row["tokens_per_verification"] == told.acceptance_length
        assert (row["low"], row["high"]) == benchmark.interval(counted)
        assert row["accepted_per_depth"] == [told.per_verification(count) for count in told.accepted]


def test_the_table_fits_a_terminal(committed: dict[str, Any]) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(benchmark.table(committed["rows"], "caption"))
    text = console.export_text()
    assert "…" not in text
    lines = [line.split() for line in text.splitlines()]
    for row in committed["rows"]:
        shown = [row["drafter"], *row["draft"].split(), f"{row['tokens_per_verification']:.2f}"]
        (line,) = (line for line in lines if line[: len(shown)] == shown)
        assert len(line) == len(shown) + 1 + row["tree_depth"]


def test_the_labels_of_the_picture_do_not_cover_each_other(committed: dict[str, Any]) -> None:
    figure = benchmark.picture(committed["rows"], 18)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert len(axes.texts) == len(committed["rows"])
    legend = axes.get_legend()
    assert legend is not None
    boxes = [text.get_window_extent() for text in (*axes.texts, *axes.get_xticklabels())]
    boxes += [axes.title.get_window_extent(), axes.xaxis.label.get_window_extent(), legend.get_window_extent()]
    boxes += [axes.yaxis.label.get_window_extent()]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    whiskers = max(axes.transData.transform((0, row["high"]))[1] for row in committed["rows"])
    assert legend.get_window_extent().y0 > whiskers
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
