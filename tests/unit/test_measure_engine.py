"""An engine in a process of its own, seen from outside, and the arguments that it gets."""

import os
import re
import sys
from pathlib import Path

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure import engine_process
from vllm_specext.measure.arguments import compared_arguments
from vllm_specext.measure.engine_process import EngineProcess
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Answer, Turn


def process(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """``program`` in place of the engine's."""
    real = engine_process.subprocess.Popen
    monkeypatch.setattr(
        engine_process.subprocess, "Popen", lambda command, **how: real([sys.executable, "-c", program], **how)
    )


def test_turns_come_back_from_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    turn = {
        "answers": [{"tokens": [1, 2], "first_token": 0.5, "latency": 1.0, "prompt_tokens": 3}],
        "duration": 1.5,
        "speculation": {"verifications": 4, "nodes": 16, "accepted": [3, 1]},
    }
    process(
        monkeypatch,
        "import json, sys\n"
        "assert '--model=here' in json.loads(input())['arguments']\n"
        "print(json.dumps({'model_runner': 'V1', 'max_model_len': 9}), flush=True)\n"
        f"for line in sys.stdin: assert json.loads(line)['concurrency'] == 4; print(json.dumps({turn}), flush=True)",
    )
    with EngineProcess("ngram", ["--model=here"], None, tmp_path / "log") as engine:
        assert engine.facts == {"model_runner": "V1", "max_model_len": 9}
        for _ in range(2):
            assert engine.turn([[1]], 8, 4) == Turn([Answer([1, 2], 0.5, 1.0, 3)], 1.5, Speculation(4, 16, (3, 1)))
    assert engine.process.returncode == 0


def test_the_process_has_its_own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process(monkeypatch, "import json, os; input(); print(json.dumps({'found': os.environ['ONLY_HERE']}))")
    with EngineProcess("plain-stock", [], None, tmp_path / "log", {"ONLY_HERE": "yes"}) as engine:
        assert engine.facts == {"found": "yes"}
    assert "ONLY_HERE" not in os.environ


def test_a_process_that_ends_is_told_with_its_last_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process(monkeypatch, "import sys; input(); sys.exit('out of memory')")
    with (
        pytest.raises(ConfigurationError, match=r"^the engine of tree ended\.\nout of memory$"),
        EngineProcess("tree", [], None, tmp_path / "log"),
    ):
        pass


def test_what_the_engine_refuses_is_the_users_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process(monkeypatch, "import json; input(); print(json.dumps({'error': 'a tree is too large.'}))")
    with (
        pytest.raises(ConfigurationError, match=r"^tree: a tree is too large\.$"),
        EngineProcess("tree", [], None, tmp_path / "log"),
    ):
        pass


def test_the_users_arguments_come_last_and_the_bundled_ones_are_the_bundled_targets_alone() -> None:
    assert compared_arguments(None, ["--dtype=bfloat16"])[-1] == "--dtype=bfloat16"
    assert any(re.match("--max-model-len", one) for one in compared_arguments(None, []))
    assert not any(re.match("--max-model-len|--dtype", one) for one in compared_arguments("model", []))
    assert "--no-enable-prefix-caching" in compared_arguments("model", [])
