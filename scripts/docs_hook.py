"""For mkdocs: the measurements' files are part of the site, formulas become MathML, and nothing comes from other hosts.

The measurements lie outside of the documents' folder, where the repository's readers find them, and pages link to them
by their place in the repository. On the site they are under ``benchmarks/results``, with their figures as SVG.
"""

import html
import re
import tempfile
from pathlib import Path
from typing import Any

from math_core import LatexToMathML
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from scripts.docs_figures import FIGURES
from scripts.docs_offline import loads

ROOT = Path(__file__).parents[1]
RESULTS = "benchmarks/results/"
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
"""What arithmatex makes of ``$...$`` and ``$$...$$``."""

CELL = re.compile(r"<td>.*?</td>", re.DOTALL)
LONG_NAME = re.compile(r"<code>[^<]{31,}</code>")
MATHML = LatexToMathML()


def on_files(files: Files, *, config: Any) -> Files:
    for path in sorted((ROOT / RESULTS).rglob("*")):
        if path.suffix in (".json", ".png", ".csv"):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    with tempfile.TemporaryDirectory(prefix="vllm-specext-docs-") as folder:
        figure = Path(folder) / "figure.svg"
        for name, draw in FIGURES.items():
            draw(figure)
            files.append(File.generated(config, f"{RESULTS}{name}.svg", content=figure.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The site's root is the documents' folder: one step up less than in the repository. Figures are SVG."""
    markdown = re.sub(rf"\]\(\.\./((?:\.\./)*{RESULTS})", r"](\1", markdown)
    return re.sub(rf"({RESULTS}({'|'.join(FIGURES)}))\.png\)", r"\1.svg)", markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers show without a script and without fonts of the site's. Long names in tables
    may be cut at their parts, short ones not at all (``docs/stylesheets/tables.css``)."""
    content = FORMULA.sub(
        lambda found: MATHML.convert_with_local_state(html.unescape(found[2]), displaystyle=found[1] == "div"), content
    )
    return CELL.sub(lambda cell: LONG_NAME.sub(cut_at_parts, cell[0]), content)


def cut_at_parts(name: re.Match[str]) -> str:
    return re.sub(r"(?<=[^<][/_.:])", "<wbr>", name[0])


def on_post_build(*, config: Any) -> None:
    if found := loads(Path(config.site_dir)):
        raise PluginError("the site must be readable without a network, but would load:\n" + "\n".join(found))
