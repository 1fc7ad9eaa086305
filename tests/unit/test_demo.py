"""The demonstration: which rows it has, and that servers only start and stop while nothing is measured."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_specext.demo import run, server
from vllm_specext.demo.run import CONFIGURATIONS, PROMPTS, SHORT, Answer, Speculation
from vllm_specext.demo.server import HOST, MEMORY, Server, ServerError, room, start_together
from vllm_specext.options import parse
from vllm_specext.registry import METHODS

SHORT_ROWS = ["plain", "griffin-chain", "griffin-tree", "eagle3-tree"]
ALL_ROWS = [*SHORT_ROWS, "moa-tree", "swift", "slem", "tli", "slrs"]
ASKED = len(json.loads(PROMPTS.read_text())) + 1
"""Requests to a server: one to warm it up."""


class Fake(Server):
    """Up once it is launched, and writes down what happens to it."""

    happened: list[tuple[str, str]] = []  # noqa: RUF012  # one list for all
    up: set[str] = set()  # noqa: RUF012
    most = 0

    @property
    def name(self) -> str:
        return self.log.stem

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
        return Answer(list(range(40)), 0.5, Speculation())

    monkeypatch.setattr(Fake, "happened", [])
    monkeypatch.setattr(Fake, "up", set())
    monkeypatch.setattr(Fake, "most", 0)
    monkeypatch.setattr(run, "Server", Fake)
    monkeypatch.setattr(run, "ask", ask)
    monkeypatch.setattr(run, "SETTLING_SECONDS", 0)
    monkeypatch.setattr(run, "room", lambda: 100)
    monkeypatch.setattr(server.time, "sleep", lambda _: None)
    return Fake


def told() -> tuple[list[str], Callable[[str, str], None]]:
    lines: list[str] = []
    return lines, lambda stage, doing: lines.append(f"{stage}  {doing}")


def test_the_short_form_has_griffins_rows_and_eagle_3s_tree_and_asks_plain_decoding_once(faked: type[Fake]) -> None:
    lines, tell = told()
    rows = run.run(tell)
    assert [each.method for each in rows] == SHORT_ROWS
    assert [each.speedup for each in rows] == [1.0] * 4
    assert [faked.happened.count(("asked", name)) for name in SHORT_ROWS] == [ASKED] * 4
    assert not faked.up
    assert lines[0] == f"starting servers  0 s, waiting for {', '.join(SHORT_ROWS)}"
    assert "asking  prompt 7 of 24, griffin-tree" in lines


@pytest.mark.parametrize(("fit", "most"), [(100, 4), (3, 3), (0, 2)])
def test_the_long_form_has_every_row_and_no_more_servers_than_fit(
    faked: type[Fake], monkeypatch: pytest.MonkeyPatch, fit: int, most: int
) -> None:
    monkeypatch.setattr(run, "room", lambda: fit)
    assert [each.method for each in run.run(told()[1], CONFIGURATIONS)] == ALL_ROWS
    assert faked.most == most
    assert [faked.happened.count(("asked", name)) for name in ALL_ROWS[1:]] == [ASKED] * 8
    assert faked.happened.count(("launched", "plain")) == 1


def test_nothing_is_started_or_stopped_between_the_turns_of_a_comparison(faked: type[Fake]) -> None:
    run.run(told()[1], CONFIGURATIONS)
    letters = "".join({"launched": "L", "asked": "a", "stopped": "S"}[what] for what, _ in faked.happened)
    assert re.fullmatch("L{4}a+S{3}L{3}a+S{3}L{2}a+S{2}S", letters)
    # After the warm-up each server's turn of four prompts is next to one of plain decoding's.
    turns = [name for what, name in faked.happened if what == "asked"][4:12]
    assert turns == ["plain"] * 4 + ["griffin-chain"] * 4


def test_the_rows_configurations_are_valid_and_eagle_3s_tree_is_griffins() -> None:
    for _, config in CONFIGURATIONS:
        parse(METHODS[config["method"]].options, config)
    rows = dict(SHORT)
    ours, griffins = rows["eagle3-tree"], rows["griffin-tree"]
    assert {key for key in ours if ours[key] != griffins.get(key)} == {"method", "model"}


def test_as_many_servers_fit_as_memory_or_the_container_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 9 * MEMORY + 1}))
    limit = tmp_path / "memory.max"
    assert room(limit) == 9
    limit.write_text("max\n")
    assert room(limit) == 9
    limit.write_text(f"{2 * MEMORY}\n")
    assert room(limit) == 2


# Starting


def small(folder: Path, name: str, script: str) -> Server:
    """A process that answers health checks, or does not."""
    made = Server(folder / f"{name}.log")
    made.command = [sys.executable, "-c", script.format(host=HOST, port=made.port)]
    return made


ANSWERS = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
HTTPServer(("{host}", {port}), Handler).serve_forever()
"""


@pytest.mark.parametrize("gpu", [False, True], ids=["CPU", "GPU"])
def test_servers_load_together_on_a_cpu_and_one_after_another_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    monkeypatch.setattr(server, "on_gpu", lambda: gpu)
    servers = {name: small(tmp_path, name, ANSWERS) for name in ("one", "two", "three")}
    running: list[int] = []
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        running.append(sum(each.process is not None for each in servers.values()))

    try:
        start_together(servers, tell)
        assert all(each.ready() for each in servers.values())
    finally:
        for each in servers.values():
            each.stop()
    assert running[0] == (1 if gpu else 3)
    assert lines[0] == "0 s, waiting for one, two, three"
    if gpu:
        assert any(line.endswith("waiting for three") for line in lines)


def test_a_server_that_ends_while_others_load_is_an_error_with_its_name_and_log(tmp_path: Path) -> None:
    fails = "print('no memory'); raise SystemExit(3)"
    servers = {"one": small(tmp_path, "one", ANSWERS), "two": small(tmp_path, "two", fails)}
    try:
        with pytest.raises(ServerError, match=r"^two: the server ended with status 3\.\nno memory"):
            start_together(servers, lambda _: None)
    finally:
        for each in servers.values():
            each.stop()
