"""Write the documents' generated tables between their markers, or say which are out of date.

    python -m scripts.docs_tables            rewrite them
    python -m scripts.docs_tables --check    change nothing; status 1 where one is out of date

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``, two comments that neither GitHub nor the
site shows. The tables are committed, so that the pages can be read where no site was built.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from scripts import (
    docs_architecture,
    docs_benchmarks,
    docs_drafters,
    docs_gpu,
    docs_reference,
    docs_swift,
    docs_trees,
    docs_versions,
)

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
MARKED = re.compile(r"(<!-- table: (?P<name>[^\n]+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)

TABLES: dict[str, Callable[[], str]] = (
    docs_reference.TABLES
    | docs_benchmarks.TABLES
    | docs_trees.TABLES
    | docs_swift.TABLES
    | docs_drafters.TABLES
    | docs_gpu.TABLES
    | docs_architecture.TABLES
    | docs_versions.TABLES
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.docs_tables", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where a table is out of date")
    check = parser.parse_args().check
    outdated = [page for page in PAGES if rewritten(page) != page.read_text(encoding="utf-8")]
    for page in outdated:
        print(f"{page.relative_to(ROOT)}: {'out of date' if check else 'rewritten'}")
        if not check:
            page.write_text(rewritten(page), encoding="utf-8")
    return int(check and bool(outdated))


def rewritten(page: Path) -> str:
    """The page with its tables as they should be; ``KeyError`` for a table that does not exist."""
    return MARKED.sub(
        lambda found: f"{found[1]}\n{TABLES[found['name']]()}\n\n{found[3]}", page.read_text(encoding="utf-8")
    )


if __name__ == "__main__":
    sys.exit(main())
