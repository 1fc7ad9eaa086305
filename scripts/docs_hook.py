"""For mkdocs: the measurements' files and plots are part of the site.

They lie outside of the documents' folder, where the repository's readers find them, and pages link to them by their
place in the repository. On the site they are under ``benchmarks/results``.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
RESULTS = "benchmarks/results/"


def on_files(files: Files, *, config: Any) -> Files:
    for path in sorted((ROOT / RESULTS).rglob("*")):
        if path.suffix in (".json", ".png", ".csv"):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The site's root is the documents' folder: one step up less than in the repository."""
    return re.sub(rf"\]\(\.\./((?:\.\./)*{RESULTS})", r"](\1", markdown)
