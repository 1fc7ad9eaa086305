"""On a package index the README stands alone, beside the project's addresses: nothing in it may be relative."""

import re
import tomllib

from tests.unit.docs_pages import ROOT, anchors, prose

README = ROOT / "README.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = PROJECT["urls"]["Source"]
FILES = f"{SOURCE}/blob/main/"
PICTURES = FILES.replace("github.com", "raw.githubusercontent.com").replace("/blob", "")
LINK = re.compile(r"""\]\(\s*<?([^)\s>]+)|^\[[^\]]+\]:\s*(\S+)|(?:href|src)=["']([^"']+)""", re.MULTILINE)


def links() -> list[str]:
    """Of the README: in brackets, as references, and in HTML."""
    return [next(filter(None, found.groups())) for found in LINK.finditer(prose(README))]


def test_the_readme_is_what_a_package_index_shows() -> None:
    assert PROJECT["readme"] == "README.md"


def test_no_link_of_the_readme_is_relative() -> None:
    assert [link for link in links() if not re.match("https://|#", link)] == []


def test_links_into_the_repository_name_files_and_headings_that_exist() -> None:
    inside = [link for link in links() if link.startswith(SOURCE)]
    assert len(inside) > 10
    for link in inside:
        assert link.startswith(FILES), link
        path, _, anchor = link.removeprefix(FILES).partition("#")
        assert (ROOT / path).is_file(), link
        assert not anchor or anchor in anchors(ROOT / path), link


def test_the_readme_begins_with_a_picture_that_exists() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", prose(README).partition("\n## ")[0])
    assert pictures
    for picture in pictures:
        assert picture.startswith(PICTURES)
        assert (ROOT / picture.removeprefix(PICTURES)).is_file(), picture


def test_the_projects_addresses_belong_together() -> None:
    urls = PROJECT["urls"]
    assert set(urls) == {"Homepage", "Source", "Documentation", "Issues"}
    assert all(url.startswith(SOURCE) for url in urls.values())
    assert (ROOT / urls["Documentation"].removeprefix(FILES)).is_file()
