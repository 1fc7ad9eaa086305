"""Servers that are measured: how many fit into memory, and how they start together."""

import sys
from pathlib import Path

import pytest

from vllm_specext.measure import server
from vllm_specext.measure.server import HOST, MEMORY, Server, ServerError, room, start_together


def test_as_many_servers_fit_as_memory_or_the_container_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 9 * MEMORY + 1}))
    limit = tmp_path / "memory.max"
    assert room(limit) == 9
    limit.write_text("max\n")
    assert room(limit) == 9
    limit.write_text(f"{2 * MEMORY}\n")
    assert room(limit) == 2


def small(folder: Path, name: str, script: str) -> Server:
    """A process that answers health checks, or does not."""
    made = Server(folder / f"{name}.log", forked=False)
    made.command = [sys.executable, "-c", script.format(host=HOST, port=made.port)]
    return made


def test_a_server_has_its_own_environment(tmp_path: Path) -> None:
    made = Server(tmp_path / "log", environment={"ONLY_HERE": "yes"}, forked=False)
    made.command = [sys.executable, "-c", "import os; print(os.environ['ONLY_HERE'], os.environ['HF_HUB_OFFLINE'])"]
    made.launch()
    assert made.process is not None
    assert made.process.wait(30) == 0
    assert made.last_lines() == "yes 1"


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
