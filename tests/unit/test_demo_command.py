"""What the demonstration shows at its end: bars on a terminal, a picture, and what to type next."""

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from vllm_specext.cli import app
from vllm_specext.demo import run
from vllm_specext.demo.picture import Bars, draw
from vllm_specext.demo.run import LONG, SHORT, Row
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS

ROOT = Path(__file__).parents[2]

demo_command = import_module("vllm_specext.cli.demo")


def row(method: str, tokens: float, speedup: float, identical: bool = True) -> Row:
    return Row(method, identical, tokens, 4.0, [], 100.0, speedup, 0.04, 24, 6)


ROWS = [row("plain", 1.0, 1.0), row("griffin-chain", 3.0, 1.5), row("griffin-tree", 4.0, 0.75)]


STOCK_ROWS = [row("plain-stock", 1.0, 1.0, identical=False), *ROWS]

# Pictures


@pytest.mark.parametrize("rows", [ROWS, STOCK_ROWS], ids=["plain first", "stock first"])
@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "█"), ("ascii", "#")])
def test_the_bars_on_a_terminal_are_as_long_as_their_figures(encoding: str, mark: str, rows: list[Row]) -> None:
    class Out(StringIO):
        @property
        def encoding(self) -> str:  # type: ignore[override]
            return encoding

    console = Console(file=Out(), width=80)
    console.print(Bars(rows))
    baseline = ["plain", "decoding"] if rows is ROWS else ["plain-stock"]
    title, *lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert title.split() == ["tokens", "per", "verification", "speed-up", "over", *baseline]
    assert len(lines) == len(rows)
    for line, each in zip(lines, rows, strict=True):
        name, tokens, left, speedup, right = line.split()
        assert (name, float(tokens), float(speedup)) == (each.method, each.tokens_per_verification, each.speedup)
        assert (left.strip(mark), right.strip(mark)) == ("", "")
        assert abs(len(left) - 22 * each.tokens_per_verification / 4.0) <= 0.5
        assert abs(len(right) - 22 * each.speedup / 1.5) <= 0.5
        assert len(line) <= 80


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    return width, height


def test_the_picture_is_a_png_with_a_line_for_each_row(tmp_path: Path) -> None:
    sizes = []
    for number in (2, 3, 9):
        path = tmp_path / f"{number}.png"
        draw((ROWS * 3)[:number], path)
        assert path.stat().st_size > 10_000
        sizes.append(png_size(path))
    widths, heights = zip(*sizes, strict=True)
    assert set(widths) == {1500}
    assert heights[0] < heights[1] < heights[2]


def test_the_picture_says_which_row_has_other_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[Any] = []
    axes = import_module("matplotlib.axes").Axes
    monkeypatch.setattr(axes, "set_yticks", lambda _, places, labels: names.extend(labels))
    draw([ROWS[0], row("griffin-chain", 3.0, 1.5, identical=False)], tmp_path / "demo.png")
    assert names == ["plain", "griffin-chain\nDIFFERENT TOKENS"]


# The command


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[tuple[str, dict[str, Any]]]]:
    """Which configurations ``demo`` ran."""
    found: list[Sequence[tuple[str, dict[str, Any]]]] = []

    def measured(tell: object, configurations: Sequence[tuple[str, dict[str, Any]]]) -> list[Row]:
        found.append(configurations)
        return ROWS

    monkeypatch.setattr(run, "run", measured)
    monkeypatch.setattr(demo_command, "end_servers_with_this", lambda: None)
    return found


def invoke(*arguments: str) -> tuple[str, BaseException | None]:
    result = CliRunner().invoke(app, ["demo", *arguments])
    return result.output, result.exception


def test_the_command_has_a_short_form_and_a_long_one(asked: list[Sequence[tuple[str, dict[str, Any]]]]) -> None:
    invoke()
    invoke("--all")
    assert asked == [SHORT, LONG]


@pytest.mark.usefixtures("asked")
def test_it_ends_with_table_bars_files_and_what_to_type_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    rows, plot = tmp_path / "demo.json", tmp_path / "demo.png"
    output, _ = invoke("--json", str(rows), "--plot", str(plot))
    parts = ["prompts, one at a time", "speed-up over plain decoding", f"written to {rows}", f"drawn to {plot}", "Next"]
    places = [output.index(part) for part in parts]
    assert places == sorted(places)
    assert output.rstrip().endswith("vllm-specext serve ./vllm_specext/demo/models/griffin")
    assert [each["method"] for each in json.loads(rows.read_text())] == [each.method for each in ROWS]
    assert png_size(plot)[0] == 1500


def test_speed_relative_to_vllm_as_it_is_is_told_and_its_tokens_are_no_error(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "run", lambda tell, configurations: STOCK_ROWS)
    plot = tmp_path / "demo.png"
    output, error = invoke("--plot", str(plot))
    assert error is None
    said = " ".join(output.split())
    assert "speed-ups are over plain-stock: plain decoding by vLLM as it is, without the plug-in's kernels" in said
    assert "6 of the prompts end in a loop" in said
    assert "speed-up over plain-stock" in said
    assert png_size(plot)[0] == 1500


def test_the_next_command_is_found_from_where_the_user_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/vllm-specext")
    assert demo_command.serve_command() == f"vllm-specext serve {MODELS / 'griffin'}"
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "executable", str(ROOT / ".venv" / "bin" / "python"))
    assert demo_command.serve_command() == ".venv/bin/vllm-specext serve ./vllm_specext/demo/models/griffin"


@pytest.mark.usefixtures("asked")
def test_without_matplotlib_one_sentence_says_why_there_is_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_specext.cli.extras.find_spec", lambda name: None if name == "matplotlib" else object())
    output, error = invoke("--plot", str(tmp_path / "demo.png"), "--json", str(tmp_path / "demo.json"))
    assert error is None
    assert 'demo.png is not drawn: the Python package matplotlib is not installed: pip install "vllm-spec' in output
    assert "Next" in output
    assert [path.name for path in tmp_path.iterdir()] == ["demo.json"]


def test_other_tokens_are_an_error_after_everything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [ROWS[0], row("griffin-chain", 3.0, 1.5, identical=False)]
    monkeypatch.setattr(run, "run", lambda tell, configurations: wrong)
    monkeypatch.setattr(demo_command, "end_servers_with_this", lambda: None)
    output, error = invoke("--json", str(tmp_path / "demo.json"), "--plot", str(tmp_path / "demo.png"))
    assert isinstance(error, ConfigurationError)
    assert str(error) == "the answers of griffin-chain differ from those of plain decoding."
    assert {path.name for path in tmp_path.iterdir()} == {"demo.json", "demo.png"}
    assert "Next" not in output


def test_a_picture_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^--plot is 'rows\.svg', but must end in \.png\.$"):
        demo_command.check_outputs(None, Path("rows.svg"))
    with pytest.raises(ConfigurationError, match=r"^--plot is .*, which cannot be written: there is no folder"):
        demo_command.check_outputs(None, tmp_path / "gone" / "demo.png")


@pytest.mark.parametrize(("target", "options"), [("demo", ""), ("demo-all", "--all ")])
def test_make_writes_the_rows_and_the_picture(target: str, options: str) -> None:
    # `make test` starts this make too, which would name its folder.
    command = ["make", "--no-print-directory", "-n", target]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1].endswith(f"/vllm-specext demo {options}--json demo.json --plot demo.png")
