"""What our source reads of vLLM's objects is found through annotations, and missed where a version lost it; and what
the functions that a Triton kernel calls became."""

from pathlib import Path

import pytest

from scripts.docs_versions import report
from scripts.record_vllm import DATA
from scripts.version_readings import READ, reading_of
from vllm_specext.engine.changes.against.attributes import attribute_uses
from vllm_specext.engine.changes.against.comparison import Adapter, broken, our_adapter
from vllm_specext.engine.changes.against.facts import Facts
from vllm_specext.engine.changes.against.recorded import Recorded
from vllm_specext.engine.changes.against.tree import open_tree, tree_of
from vllm_specext.engine.changes.guard import SUPPORTED

OURS = """
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.runner import Runner
from vllm_specext.changes import replaces

if TYPE_CHECKING:
    from vllm.batch import Batch

@dataclass
class Step:
    batch: "Batch | None"
    anything: Any

    @property
    def runner(self) -> Runner:
        return self.anything

class Ours(Runner):
    own = 1

    def __init__(self, other):
        self.kept: Batch = other

    def run(self, step: Step, batch: Any) -> None:
        self.inherited(step.batch.tokens, step.runner.lost, self.own, self.kept.rows)
        batch.nothing_is_known
        def inner(step: Any) -> None:
            step.batch.hidden_by_a_parameter

@replaces("vllm.runner.Runner.load", name="x")
def _load(original):
    def load(self: Any) -> None:
        self.speculator.unknown
    return load

@replaces("vllm.runner.Runner.switch", name="x", kind="set")
def set_it(self: Any) -> None:
    self.not_a_runner
"""
RUNNER = """
class Base:
    def inherited(self): ...
class Runner(Base):
    def __init__(self): self.speculator, self.lost = 1, 2
"""
BATCH = "class Batch:\n tokens: int\n rows: int"


def facts(folder: Path, runner: str, batch: str) -> Facts:
    for name, text in {"__init__": "", "config/__init__": "", "runner": runner, "batch": batch}.items():
        file = folder / "vllm" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Facts(open_tree(folder))


@pytest.fixture
def adapter(tmp_path: Path) -> Adapter:
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "part.py").write_text(OURS)
    return Adapter({}, (), [], [], [], [], attribute_uses(tree_of(ours, "vllm_specext")))


def test_attributes_are_found_through_annotations(adapter: Adapter) -> None:
    assert {use.path for use in adapter.attributes} == {
        "vllm.batch.Batch.tokens",
        "vllm.batch.Batch.rows",
        "vllm.runner.Runner.inherited",
        "vllm.runner.Runner.lost",
        "vllm.runner.Runner.speculator",
    }


def test_a_lost_attribute_is_found(adapter: Adapter, tmp_path: Path) -> None:
    before = facts(tmp_path / "before", RUNNER, BATCH)
    assert broken(adapter, before, before) == []
    now = facts(tmp_path / "now", RUNNER.replace("self.lost", "self.other"), BATCH.replace(" rows", " lines"))
    assert {(each.path, each.what, each.place) for each in broken(adapter, now, before)} == {
        ("vllm.runner.Runner.lost", "it is missing", "part.py:27"),
        ("vllm.batch.Batch.rows", "it is missing", "part.py:27"),
    }


def test_what_comes_from_elsewhere_is_not_missed(adapter: Adapter, tmp_path: Path) -> None:
    """A class of torch's has attributes that no source of vLLM's shows."""
    before = facts(tmp_path / "before", RUNNER.replace("self.lost", "self.other"), BATCH)
    assert broken(adapter, before, before) == []


@pytest.mark.parametrize("minor", SUPPORTED)
def test_no_version_that_we_work_with_lacks_an_attribute(minor: str) -> None:
    """Nor does any come from elsewhere yet, so that all of them are checked."""
    version, read = Recorded(DATA / f"vllm-{minor}.json"), our_adapter().attributes
    assert len(read) > 100
    assert [
        use.path for use in read if version.get(use.path) is None and version.get(use.instead or use.path) is None
    ] == []


def test_a_kernel_is_another_where_a_function_is_that_it_calls(tmp_path: Path) -> None:
    text = "@triton.jit\ndef low(x): return x\n@triton.jit\ndef mid(x): return low(x)\n@triton.jit\ndef top(x): mid(x)"
    plain = "def low(x): return x\ndef top(x): return low(x)"
    found = {
        name: facts(tmp_path / name, kernels, "").get("vllm.runner.top")
        for name, kernels in {
            "kernel": text,
            "changed": text.replace("return x", "return -x"),
            "plain": plain,
            "plain changed": plain.replace("return x", "return -x"),
        }.items()
    }
    bodies = {name: fact.body for name, fact in found.items() if fact}
    assert bodies["kernel"] != bodies["changed"]
    assert bodies["plain"] == bodies["plain changed"]


def test_somebody_has_read_whatever_changed_inside() -> None:
    changed = [finding.path.replace(":", ".") for finding in report().changed_inside]
    assert [path for path in changed if reading_of(path) is None] == []
    ends = [end for known in READ.values() for end in known]
    assert [end for end in ends if not any(path.endswith(f".{end}") for path in changed)] == []
