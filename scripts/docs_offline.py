"""What a browser would load from other hosts to show the built site.

There must be nothing, so that the site can be read without a network, and no other host learns who reads it. A link
that a reader may click loads nothing.

Scripts are not read. The theme's own loads Mermaid from another host, but only for a page with a diagram in that
language; so such a diagram counts, too.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

FOREIGN = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)
LOADED = {"src", "srcset", "poster", "data"}
"""Attributes whose address is loaded with the page, in any element."""
HREF_LOADED = {"link", "image", "use"}
"""Elements whose ``href`` is loaded. In ``a`` it waits for a click."""
ONLY_NAMED = {"canonical", "alternate", "prev", "next", "license", "author"}
"""Kinds of ``link`` that name a page and load nothing."""


class Loads(HTMLParser):
    """Collects the addresses, in ``found``."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        names = set(LOADED)
        if tag in HREF_LOADED and given.get("rel") not in ONLY_NAMED:
            names |= {"href", "xlink:href"}
        self.found += [given[name] for name in sorted(names & set(given)) if FOREIGN.match(given[name])]
        self.found += IN_STYLES.findall(given.get("style", ""))
        if "mermaid" in given.get("class", "").split():
            self.found.append("Mermaid, for a diagram")
        self.in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.found += IN_STYLES.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False


def loads(site: Path) -> list[str]:
    """One line for each address that a file of the site would load."""
    return [
        f"{path.relative_to(site)}: {address}"
        for path in sorted(site.rglob("*"))
        if path.suffix in (".html", ".svg", ".css")
        for address in of_file(path)
    ]


def of_file(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".css":
        yield from IN_STYLES.findall(text)
    else:
        parser = Loads()
        parser.feed(text)
        yield from parser.found
