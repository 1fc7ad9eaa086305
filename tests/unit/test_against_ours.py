"""How our own source is read for what it uses of vLLM."""

from pathlib import Path

from vllm_specext.engine.changes.against.comparison import Adapter, broken
from vllm_specext.engine.changes.against.facts import Facts
from vllm_specext.engine.changes.against.tree import open_tree, tree_of
from vllm_specext.engine.changes.against.uses import uses


def test_a_package_of_ours_is_read_by_the_same_rules(tmp_path: Path) -> None:
    """A parameter hides an import, a fallback counts, and a call that hands on everything is not judged."""
    (tmp_path / "ours.py").write_text(
        """
from vllm.tools import cut
try:
    from vllm.new import paste
except ImportError:
    from vllm.old import paste

def start(glue):
    from vllm.tools import glue as other
    cut(1, 2, 3, colour="red")
    glue(9, 9, 9)
    other(*[1, 2], **{})
    return paste(1)
"""
    )
    (tmp_path / "vllm" / "config").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "config/__init__.py": "",
        "tools.py": "def cut(paper, by, *, colour): ...\ndef glue(only): ...",
        "old.py": "def paste(): ...",
    }.items():
        (tmp_path / "vllm" / name).write_text(text)
    ours = tree_of(tmp_path, "vllm_specext")
    small = Adapter({}, (), [use for use in uses(ours) if use.place.startswith("ours.py")], [], [], [], [])
    found = {(each.path, each.what, each.place) for each in broken(small, Facts(open_tree(tmp_path)))}
    assert found == {
        ("vllm.tools.cut", "it takes 2 arguments by position, not 3", "ours.py:10"),
        ("vllm.new.paste", "it takes 0 arguments by position, not 1", "ours.py:13"),
    }
