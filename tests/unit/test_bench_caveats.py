"""Wide spreads, lone rounds, a busy machine, wrong tokens and rows that are left out are said before the figures."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_bench_report import PROMPTS, sweep, turns, with_stock
from vllm_specext.bench.caveats import caveats
from vllm_specext.bench.configurations import NGRAM, Configuration
from vllm_specext.bench.plot_style import bar
from vllm_specext.bench.report import header, write
from vllm_specext.bench.results import Results, described
from vllm_specext.bench.rows import summarised
from vllm_specext.bench.spread import is_ratio_unsure, is_unsure, width
from vllm_specext.bench.summary import cells
from vllm_specext.bench.workload import Workload
from vllm_specext.measure.plain import PLAIN, STOCK

WORK = Workload("org/model", [], [], 48, 2)
QUIET = {"at_start": 0.01, "while_measuring": 0.05, "highest": 0.6}
BUSY = {"at_start": 0.02, "while_measuring": 0.45, "highest": 0.9}


def steady(*durations: float) -> Results:
    """Plain decoding, and n-grams whose rounds take ``durations``."""
    plain = turns(*[4.0] * len(durations))
    rows = []
    for configuration, own in ((Configuration(PLAIN), plain), (Configuration("ngram", NGRAM), turns(*durations))):
        rows.append({**described(configuration, "V1"), "max_concurrency": 1, **summarised(own, plain)})
    return Results("sweep", PROMPTS, rows)


def said(results: Results, others: dict[str, float] | None = None, work: Workload = WORK) -> list[str]:
    return caveats(results, header(work, others))


@pytest.mark.parametrize(("durations", "unsure"), [((2.0, 2.1, 2.05), False), ((2.0, 2.4, 2.2), True), ((2.0,), True)])
def test_rounds_that_differ_widely_and_lone_rounds_are_no_results(durations: tuple[float, ...], unsure: bool) -> None:
    results = steady(*durations)
    row = results.rows[1]
    assert is_unsure(row) == unsure
    titles, lines = cells(results.rows)
    assert lines[1][titles.index("speed-up")].startswith("~") == unsure
    assert not lines[0][titles.index("speed-up")].startswith("~")
    assert (bar("red", row)["facecolor"] == "white") == unsure
    assert bool(said(results)) == unsure


def test_what_is_said_of_spreads() -> None:
    (wide,) = said(steady(2.0, 2.4, 2.2))
    assert wide.startswith("**Wide spreads**: 1 of 1 speed-ups are marked ~")
    assert "18% at most" in wide
    assert width(steady(2.0, 2.4, 2.2).rows[1]) == pytest.approx(0.333 / 1.818, abs=0.001)
    (one,) = said(steady(2.0))
    assert one.startswith("**One round**")
    titles, lines = cells(steady(2.0).rows)
    assert lines[1][titles.index("spread")] == "one round"


def test_a_ratio_to_no_nodes_has_a_spread_of_its_own() -> None:
    row: dict[str, Any] = {"speedup": 2.0, "speedup_lowest": 1.0, "speedup_highest": 3.0, "rounds": 3}
    narrow = row | {"ratio_to_no_nodes": 1.5, "lowest_ratio": 1.45, "highest_ratio": 1.55}
    assert (is_unsure(narrow), is_ratio_unsure(narrow)) == (True, False)
    assert is_ratio_unsure(narrow | {"highest_ratio": 1.7})
    assert not is_ratio_unsure(row)


def test_a_busy_machine_is_said_at_the_top(tmp_path: Path) -> None:
    results = steady(2.0, 2.1)
    assert said(results, QUIET) == []
    (busy,) = said(results, BUSY)
    assert busy.startswith("**The machine was busy**")
    assert "2% of the processor cores before anything was loaded, 45% on average" in busy
    write(results, header(WORK, BUSY), tmp_path)
    page = (tmp_path / "sweep.md").read_text()
    assert page.index("The machine was busy") < page.index("| method |")
    write(results, header(WORK, QUIET), tmp_path)
    assert "busy" not in (tmp_path / "sweep.md").read_text()


def test_acceptance_does_not_depend_on_a_busy_machine() -> None:
    row = {**described(Configuration("ngram", NGRAM), "V1"), "identical": True, "spec_decode_acceptance_length": 2.0}
    assert said(Results("acceptance", PROMPTS, [row]), BUSY) == []


def test_wrong_tokens_come_first_and_others_samples_are_none() -> None:
    results = sweep()
    results.rows[2] |= {"identical": False}
    first, *_ = said(results, BUSY)
    assert first.startswith("**Not the tokens of plain decoding**: tree, 8 nodes. ")
    results.rows[2] |= {"same_tokens_promised": False}
    assert not any("Not the tokens" in one for one in said(results))
    stock = with_stock()
    next(row for row in stock.rows if row["method"] == STOCK)["identical"] = False
    assert not any("Not the tokens" in one for one in said(stock))


def test_rows_that_are_left_out_are_said() -> None:
    work = Workload("org/model", [], [], 48, 2, left_out={"suffix": "there is no package."})
    assert said(steady(2.0, 2.1), work=work) == ["The row `suffix` was left out: there is no package."]


def test_the_bundled_targets_speed_is_not_everyones() -> None:
    bundled = Workload(None, [], [], 48, 2)
    assert said(steady(2.0, 2.1), work=bundled)[0].startswith("The bundled target is small")
