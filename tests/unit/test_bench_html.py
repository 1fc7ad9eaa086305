"""The report in one file: it has what the Markdown page has, and it loads nothing from anywhere."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_bench_report import by_rate, sweep, with_stock
from vllm_specext.bench.page import page
from vllm_specext.bench.report import header, write
from vllm_specext.bench.results import Results
from vllm_specext.bench.workload import Workload

WORK = Workload(None, [], [], 48, 2, left_out={"suffix": "there is `no` package."})
BUSY = {"at_start": 0.02, "while_measuring": 0.45, "highest": 0.9}
LOADING = ("src", "href", "srcset", "data", "action", "poster", "background")
"""Attributes whose address a browser follows, most of them at once."""


class Read(HTMLParser):
    """The elements, what they would load, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.loaded: list[str] = []
        self.cells: list[str] = []
        self.shown = ""
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self._inside.append(tag)
        self.loaded += [str(value) for name, value in attrs if name in LOADING]
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" in self._inside:
            return
        self.shown += data
        if {"td", "th"} & set(self._inside[-1:]):
            self.cells[-1] += data


def external(text: str) -> list[str]:
    """Whatever a browser would load that is not in the page itself."""
    read = Read(text)
    found = [address for address in read.loaded if not address.startswith("data:")]
    found += [element for element in read.elements if element in ("script", "link", "iframe", "object", "embed")]
    return found + re.findall(r"@import|url\(|https?://[^\s\"'<]+", text)


def written(results: Results, folder: Path) -> str:
    write(results, header(WORK, BUSY), folder)
    return (folder / f"{results.name}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("results", [sweep(), with_stock(), by_rate()], ids=["sweep", "with stock", "serve"])
def test_it_loads_nothing_and_forbids_it(results: Results, tmp_path: Path) -> None:
    text = written(results, tmp_path)
    assert external(text) == []
    assert "default-src 'none'; img-src data:" in text


@pytest.mark.parametrize(
    "fault",
    [
        '<img src="sweep.png">',
        '<script src="https://cdn.example/x.js"></script>',
        "<style>body { background: url(x.png) }</style>",
        '<link rel="stylesheet" href="x.css">',
    ],
)
def test_what_is_loaded_from_elsewhere_would_be_found(fault: str, tmp_path: Path) -> None:
    assert external(written(sweep(), tmp_path) + fault) != []


def test_it_has_what_the_markdown_page_has(tmp_path: Path) -> None:
    results = with_stock()
    head = header(WORK, BUSY)  # which has the time
    write(results, head, tmp_path)
    text = (tmp_path / f"{results.name}.html").read_text(encoding="utf-8")
    content = page(results, head, {})
    read = Read(text)
    assert read.cells == [*content.titles, *(cell for line in content.lines for cell in line)]
    shown = " ".join(read.shown.split())
    for sentence in (content.title, content.facts, content.prompts, *content.caveats, *content.meanings.values()):
        assert " ".join(sentence.replace("`", "").replace("**", "").split()) in shown
    assert read.shown.index("The machine was busy") < read.shown.index("tokens/s")
    pictures = [base64.b64decode(address.partition(",")[2]) for address in read.loaded]
    assert pictures == [path.read_bytes() for path in sorted(tmp_path.glob("*.png"), reverse=True)]


def test_names_are_text_and_no_markup(tmp_path: Path) -> None:
    results = sweep()
    for row in results.rows:
        row["method"] = row["method"].replace("tree", "<script>alert('x')</script>")
    text = written(results, tmp_path)
    assert external(text) == []
    assert "&lt;script&gt;" in text


def test_bars_are_as_long_as_the_speed_and_marks_say_what_is_wrong(tmp_path: Path) -> None:
    results = sweep()
    results.rows[2] |= {"identical": False}
    text = written(results, tmp_path)
    speeds = [row["speedup"] for row in results.rows]
    shares = [float(one) for one in re.findall(r"--share: ([\d.]+)%", text)]
    assert shares == pytest.approx([100 * speed / max(speeds) for speed in speeds], abs=1)
    assert re.search(r'<td class="[^"]*wrong[^"]*">NO</td>', text)
    assert re.search(r'<td class="[^"]*unsure[^"]*" style="[^"]*">~2\.25</td>', text)


def test_the_title_says_what_was_measured_on_what(tmp_path: Path) -> None:
    head: dict[str, Any] = header(Workload("org/model", [], [], 48, 2)) | {"device": "NVIDIA H100"}
    found = page(sweep(), head, {}).title
    assert found == "sweep: 3 configurations with org/model on NVIDIA H100, greedy"
    assert page(sweep(), head | {"device": "cpu"}, {}).title.endswith("on a CPU, greedy")
