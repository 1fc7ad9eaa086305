"""Every CPU kernel body against the Triton kernel that it replaces, under Triton's interpreter.

On a CPU vLLM's kernels are plain Python functions unless a Triton backend named "cpu" exists before vLLM is imported.
So the cases (``cases/case_*.py``) run in one process of their own, with ``triton_cpu_stub`` and ``TRITON_INTERPRET=1``.
``case_tree_attention.py`` is about the project's own kernel, which needs such a process too. Here each file of cases is
one test; the summary line at the end of the run tells how many cases that were. Of each function's cases one is run,
unless tests that are marked ``extended`` are run too.
"""

import importlib.util
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).parent
FILES = sorted(path.stem for path in (HERE / "cases").glob("case_*.py"))
EACH = 1
"""Cases of a function that are run by default."""
CASES_RUN = pytest.StashKey[int]()


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, dict[str, str]]:
    """Return, per file, what became of each case: "" when it passed, else the report.

    What only a GPU can show is no case here.
    """
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the kernels to compare with need the triton package")
    report = tmp_path_factory.mktemp("cpu_bodies") / "report.xml"
    search_path = os.pathsep.join([str(HERE / "triton_cpu_stub"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "cases", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    if "not extended" in request.config.option.markexpr:
        command.append(f"--each={EACH}")
    finished = subprocess.run(
        [*command, "-o", "python_files=case_*.py", "-o", "addopts="],
        cwd=HERE,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": search_path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    # 0: all passed, 1: some failed. Anything else means that the cases did not run.
    assert finished.returncode in (0, 1), finished.stdout + finished.stderr
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for case in ElementTree.parse(report).iter("testcase"):
        problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if problem is not None and problem.get("message") == "needs a CUDA device":
            continue
        file = case.attrib["classname"].rsplit(".", 1)[-1]
        found[file][case.attrib["name"]] = "" if problem is None else f"{problem.tag}: {problem.text}"
    # A skip fails its file below; pytest's own status knows failures and errors only.
    failures = [text for cases in found.values() for text in cases.values() if text and not text.startswith("skipped")]
    assert bool(failures) == (finished.returncode == 1)
    request.config.stash[CASES_RUN] = sum(map(len, found.values()))
    return found


@pytest.mark.parametrize("file", FILES)
def test_bodies_equal_their_triton_kernels(file: str, outcomes: dict[str, dict[str, str]]) -> None:
    cases = outcomes[file]
    assert cases, f"{file} holds no case"
    failed = {name: text for name, text in cases.items() if text}
    assert not failed, "\n\n".join(f"{name}: {text}" for name, text in failed.items())
