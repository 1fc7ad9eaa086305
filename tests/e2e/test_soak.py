"""A server with draft trees under mixed and hostile load: see ``benchmarks/soak``."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def soak(minutes: float, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.soak", f"--minutes={minutes}", f"--output={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * minutes + 1200, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    result: dict[str, Any] = json.loads((folder / "griffin-tree.json").read_text())
    return result


@pytest.mark.extended
@pytest.mark.parametrize(
    "minutes",
    [0.5, 15],
    ids=["half a minute", "quarter of an hour"],
)
def test_a_server_answers_like_plain_decoding_whatever_its_clients_do(minutes: float, tmp_path: Path) -> None:
    result = soak(minutes, tmp_path)
    requests = result["requests"]
    # The load was what it should be: of every kind, and with too little room.
    assert requests["answered whole"] + requests["answered as a stream"] >= 30 * minutes
    assert requests["aborted"] > 0
    assert requests["disconnected while waiting"] + requests["disconnected within the message"] > 0
    assert sum(result["refused"].values()) > 5
    assert result["preemptions"] > 0
    assert result["tokens_per_verification"] > 1.4
    assert [death["killed"] for death in result["deaths"]] == ["Worker", "EngineCore"]
    assert (tmp_path / "griffin-tree.png").stat().st_size > 0
