"""The demonstration: which rows it has, and that servers only start and stop while nothing is measured."""

import json
import re
from collections.abc import Callable

import pytest

from vllm_specext.demo import run
from vllm_specext.demo.run import LONG, SHORT, Answer
from vllm_specext.measure import server, turns
from vllm_specext.measure.bundled import CONFIGURATIONS, PROMPTS
from vllm_specext.measure.server import Server
from vllm_specext.measure.speculation import Speculation
from vllm_specext.options.check import parse
from vllm_specext.registry import METHODS

PLAIN_ROWS = ["plain-stock", "plain"]
SHORT_ROWS = [*PLAIN_ROWS, "griffin-chain", "griffin-tree", "eagle3-tree"]
ALL_ROWS = [*SHORT_ROWS, "dflash", "dflash-tree", "moa-tree", "swift", "slem", "tli", "slrs"]
ASKED = run.PASSES * len(json.loads(PROMPTS.read_text())) + 1
"""Requests to a server: one to warm it up."""


class Fake(Server):
    """Up once it is launched, and writes down what happens to it."""

    happened: list[tuple[str, str]] = []  # noqa: RUF012  # one list for all
    up: set[str] = set()  # noqa: RUF012
    most = 0

    @property
    def name(self) -> str:
        return self.log.stem

    @property
    def is_stock(self) -> bool:
        return self.environment == {"VLLM_SPECEXT_CPU_KERNELS": "stock", "VLLM_SPECEXT_NATIVE": "0"}

    def launch(self) -> None:
        self.process = object()  # type: ignore[assignment]
        self.up.add(self.name)
        Fake.most = max(self.most, len(self.up))
        self.happened.append(("launched", self.name))

    def ready(self) -> bool:
        return True

    def stop(self) -> None:
        self.up.discard(self.name)
        self.happened.append(("stopped", self.name))


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    def ask(client: object, asked: Fake, prompt: str) -> Answer:
        asked.happened.append(("asked", asked.name))
        assert asked.is_stock == (asked.name == "plain-stock")
        # vLLM's kernels round otherwise, and take longer.
        return Answer(list(range(asked.is_stock, 40)), 0.975 if asked.is_stock else 0.5, Speculation())

    monkeypatch.setattr(Fake, "happened", [])
    monkeypatch.setattr(Fake, "up", set())
    monkeypatch.setattr(Fake, "most", 0)
    monkeypatch.setattr(run, "Server", Fake)
    monkeypatch.setattr(run, "ask", ask)
    monkeypatch.setattr(run, "SETTLING_SECONDS", 0)
    monkeypatch.setattr(run, "room", lambda: 100)
    monkeypatch.setattr(run, "has_stock_row", lambda: True)
    monkeypatch.setattr(server.time, "sleep", lambda _: None)
    monkeypatch.setattr(turns.time, "sleep", lambda _: None)
    return Fake


def told() -> tuple[list[str], Callable[[str, str], None]]:
    lines: list[str] = []
    return lines, lambda stage, doing: lines.append(f"{stage}  {doing}")


def test_the_short_form_has_griffins_rows_and_eagle_3s_tree_and_asks_plain_decoding_once(faked: type[Fake]) -> None:
    lines, tell = told()
    rows = run.run(tell)
    assert [each.method for each in rows] == SHORT_ROWS
    assert [each.speedup for each in rows] == [1.0] + [2.0] * 4
    assert [each.identical for each in rows] == [False] + [True] * 4
    assert [faked.happened.count(("asked", name)) for name in SHORT_ROWS] == [ASKED] * 5
    assert not faked.up
    assert lines[0] == f"starting servers  0 s, waiting for {', '.join(SHORT_ROWS)}"
    assert "asking  prompt 7 of 24, griffin-tree" in lines


def test_where_the_plug_in_changes_nothing_of_plain_decoding_it_has_one_row(
    faked: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "has_stock_row", lambda: False)
    rows = run.run(told()[1])
    assert [(each.method, each.speedup) for each in rows] == [(name, 1.0) for name in SHORT_ROWS[1:]]
    assert faked.most == 4


@pytest.mark.parametrize(("fit", "most"), [(100, 7), (4, 4), (0, 3)])
def test_the_long_form_has_every_row_and_no_more_servers_than_fit(
    faked: type[Fake], monkeypatch: pytest.MonkeyPatch, fit: int, most: int
) -> None:
    monkeypatch.setattr(run, "room", lambda: fit)
    assert [each.method for each in run.run(told()[1], LONG)] == ALL_ROWS
    assert faked.most == most
    assert [faked.happened.count(("asked", name)) for name in ALL_ROWS[2:]] == [ASKED] * 10
    assert [faked.happened.count(("launched", name)) for name in PLAIN_ROWS] == [1, 1]


def test_nothing_is_started_or_stopped_between_the_turns_of_a_comparison(faked: type[Fake]) -> None:
    run.run(told()[1], LONG)
    letters = "".join({"launched": "L", "asked": "a", "stopped": "S"}[what] for what, _ in faked.happened)
    assert re.fullmatch("L{7}a+S{5}L{5}a+S{5}SS", letters)
    # After the warm-up each server's turn of eight prompts is next to one of plain decoding's.
    turns = [name for what, name in faked.happened if what == "asked"][7:31]
    assert turns == ["plain-stock"] * 8 + ["plain"] * 8 + ["griffin-chain"] * 8


def test_a_speed_up_that_differs_between_turns_has_an_error() -> None:
    def answers(*seconds: float) -> list[Answer]:
        return [Answer([0] * 10, each) for each in seconds for _ in range(run.PROMPTS_PER_TURN)]

    own, baseline = answers(1.0, 2.0, 1.0), answers(2.0, 2.0, 3.0)
    assert run.speedups(own, baseline) == pytest.approx([2.0, 1.0, 3.0])
    row = run.summarize("drafts", own, own, baseline)
    assert row.speedup == pytest.approx(7 / 4)
    assert row.speedup_error == pytest.approx(1 / 3**0.5, abs=0.001)
    assert run.summarize("drafts", answers(1.0), answers(1.0), answers(2.0)).speedup_error == 0


def test_the_rows_configurations_are_valid_and_eagle_3s_tree_is_griffins() -> None:
    for _, config in CONFIGURATIONS:
        parse(METHODS[config["method"]].options, config)
    rows = dict(SHORT)
    ours, griffins = rows["eagle3-tree"], rows["griffin-tree"]
    assert {key for key in ours if ours[key] != griffins.get(key)} == {"method", "model"}
