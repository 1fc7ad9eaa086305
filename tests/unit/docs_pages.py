"""The documents as tests read them: their code blocks, links and headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

FENCED = re.compile(r"^```(?P<language>\w*)(?P<rest>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_BY = re.compile(r"<!-- run by (\S+) -->\n\Z")
NEEDS = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    body: str
    needs: str | None
    """Why it is not run: what it needs or how long it takes, which the site shows above the block."""
    run_by: str | None
    """The file that runs it, named in a comment before the block."""
    near: tuple[str, str]
    """The paragraphs right before and right after it, empty next to another block or a heading."""

    @property
    def commands(self) -> list[str]:
        """One line each, continuation lines joined."""
        return [line for line in re.sub(r" *\\\n\s*", " ", self.body).splitlines() if line.strip()]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.body.splitlines()[0]}"


def blocks(*languages: str) -> Iterator[Block]:
    """The blocks of all pages, in one of ``languages`` or, without any, in all."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        between = [paragraphs(piece) for piece in FENCED.sub("\0", text).split("\0")]
        for index, found in enumerate(FENCED.finditer(text)):
            needs, run_by = NEEDS.search(found["rest"]), RUN_BY.search(text[: found.start()])
            if not languages or found["language"] in languages:
                yield Block(
                    page,
                    found["language"],
                    found["body"],
                    needs[1] if needs else None,
                    run_by[1] if run_by else None,
                    (between[index][-1], between[index + 1][0]),
                )


def paragraphs(text: str) -> list[str]:
    """The paragraphs of what stands between two blocks, without comments. A heading is an empty one."""
    visible = re.sub(r"^<!--.*-->$", "", text, flags=re.MULTILINE).strip("\n").split("\n\n")
    return ["" if re.match("#+ ", piece) else piece for piece in visible]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The headings' anchors, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
