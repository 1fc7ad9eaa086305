"""Drafters with a foreign tokenizer some of whose layers see a window of the text: the tokens of plain decoding."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.conftest import Result
from tests.engine.test_foreign import accepted, foreign
from tests.engine.test_lossless import differing
from tests.engine.workload import FOREIGN_BPE

Engines = Callable[..., Result]

METHODS = ["slem", pytest.param("tli", marks=pytest.mark.extended)]


def windowed(folder: Path, window: int) -> Path:
    shutil.copytree(FOREIGN_BPE, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": window}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_small_windows_change_drafts_and_no_tokens(engines: Engines, method: str, tmp_path: Path) -> None:
    """As many drafted tokens are accepted as without windows where these are longer than any text."""
    small, large = (engines(foreign(method, windowed(tmp_path / str(window), window))) for window in (8, 10**5))
    without = engines(foreign(method, FOREIGN_BPE))
    assert differing(small, engines({})) == []
    assert differing(large, without) == []
    assert accepted(large) == accepted(without)
    assert 20 < accepted(small) != accepted(without)


@pytest.mark.extended
def test_windows_in_graphs_are_those_without(engines: Engines, tmp_path: Path) -> None:
    config = foreign("slem", windowed(tmp_path / "drafter", 8))
    recorded, eager = (engines(config, graphs=graphs) for graphs in ([1, 2, 4, 8], None))
    assert differing(recorded, eager) == []
    assert accepted(recorded) == accepted(eager)
