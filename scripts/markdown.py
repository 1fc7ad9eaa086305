"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Cells that look like code or figures are the caller's to mark up; a bar in a cell is escaped."""
    lines = [list(map(str, header)), ["---"] * len(header), *(list(map(str, row)) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: object) -> str:
    return f"`{text}`"
