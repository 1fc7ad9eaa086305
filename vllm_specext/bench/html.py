"""``NAME.html``: the report as one file that loads nothing, so that it opens anywhere and can be sent on.

torch brings jinja2, so every extra that has an engine has it."""

import base64
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from vllm_specext.bench.page import Page
from vllm_specext.bench.summary import OTHER_SAMPLES, UNSURE

TEMPLATE = Path(__file__).with_name("page.html")
WORDS = ("method", "task", "runner", "same tokens")
"""Columns of words, which begin at the left; figures end at the right."""
BAR = "speed-up"


def html(content: Page, folder: Path) -> str:
    """``content`` with the pictures in ``folder`` written into it."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        page=content,
        rows=rows(content),
        pictures={title: data_uri(folder / file) for title, file in content.pictures.items()},
        words=WORDS,
        sentence=sentence,
    )


def sentence(text: str) -> Markup:
    """`code` and **strong** words as HTML; everything else as it stands."""
    found = str(escape(text))
    found = re.sub(r"`([^`]+)`", r"<code>\1</code>", found)
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", found))


def data_uri(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def rows(content: Page) -> list[dict[str, Any]]:
    """Each line's cells, and whether it begins another method than the line before."""
    speeds = [figure(line[content.titles.index(BAR)]) for line in content.lines] if BAR in content.titles else []
    most = max(speeds, default=1.0) or 1.0
    found = []
    before = None
    for line in content.lines:
        cells = [cell(title, text, most) for title, text in zip(content.titles, line, strict=True)]
        found.append({"cells": cells, "begins": line[0] != before})
        before = line[0]
    return found


def cell(title: str, text: str, most: float) -> dict[str, Any]:
    """The text, its classes, and the length of its bar as a share of the longest, in per cent."""
    marks = [
        name
        for name, holds in (
            ("words", title in WORDS),
            ("unsure", text.startswith(UNSURE)),
            ("wrong", text == "NO"),
            ("other", text == OTHER_SAMPLES),
        )
        if holds
    ]
    share = round(100 * figure(text) / most, 1) if title == BAR and text else None
    return {"text": text, "classes": " ".join(marks), "share": share}


def figure(text: str) -> float:
    return float(text.removeprefix(UNSURE) or 0)
