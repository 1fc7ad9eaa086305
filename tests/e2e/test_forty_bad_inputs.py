"""Whatever is wrong with a command line is said in one sentence, without a terminal, at 80 columns, within 15 s.

Some of the commands are started as a user starts them, and timed. The others run in processes that find vLLM imported
(``tests/forks.py``); ``make test-all`` starts them as well.
"""

import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.e2e.bad_inputs import BAD_INPUTS, BadInput
from vllm_specext.measure.arguments import ENVIRONMENT
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.measure.server import HOST

TIMES_THE_IMPORTS = 2
"""Of processor time: a refusal costs the imports and little beside them. A model's loading would be over this."""

ERROR = re.compile(r"(?:vllm serve: )?error: (.*)")

HIDE = """
import os
from importlib.machinery import PathFinder

hidden, find_spec = os.environ["HIDDEN"], PathFinder.find_spec
PathFinder.find_spec = lambda name, *places: None if name == hidden else find_spec(name, *places)
"""
"""As ``sitecustomize``: the package is not there, for imports and for those that ask."""


STARTED = {
    "a misspelt key",  # refused before vLLM is imported
    "more nodes than a tree has",  # by our part of vLLM's configuration
    "an option of vLLM's",  # by vLLM's own parser
    "an output that cannot be made",
    "no such command",
    "no such option",
    "no such option of the doctor",
    "rows in a folder",
    "a damaged tokenizer",
    "a set that is no JSON",
    "a truncated drafter to convert",
    *(name for name, case in BAD_INPUTS.items() if case.without is not None),
}
"""One of each kind, by command and by who refuses it; what vLLM refuses in words that we change is the same in a fork.
And all for which a package has to be hidden from the start."""


def ways() -> Iterator[Any]:
    for name in BAD_INPUTS:
        yield pytest.param(name, True, id=name, marks=() if name in STARTED else pytest.mark.extended)
        if name not in STARTED:
            yield pytest.param(name, False, id=f"{name}, with vLLM imported")


def call(arguments: list[str]) -> None:
    """As ``python -m vllm_specext`` does."""
    from vllm_specext.cli import main

    sys.argv = ["vllm-specext", *arguments]
    main()


def run(case: BadInput, folder: Path, port: int, is_started: bool) -> subprocess.CompletedProcess[str]:
    own = {"TARGET": str(TARGET), "BUNDLED": str(MODELS), "PORT": str(port)}
    arguments = [re.sub("|".join(own), lambda word: own[word[0]], argument) for argument in case.arguments]
    environment = os.environ | ENVIRONMENT | {"COLUMNS": "80"}
    if not is_started:
        streams = folder.with_name(f"{folder.name}-printed")
        return forks.run(
            f"{__name__}:call", arguments, environment=environment, folder=folder, streams=streams, seconds=300
        )
    if case.without is not None:
        (folder / "hiding").mkdir()
        (folder / "hiding" / "sitecustomize.py").write_text(HIDE)
        path = os.pathsep.join(filter(None, (str(folder / "hiding"), os.environ.get("PYTHONPATH"))))
        environment |= {"HIDDEN": case.without, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-m", "vllm_specext", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def processor_time() -> float:
    """Of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server((HOST, 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def imports() -> float:
    """Seconds of processor time, on this machine and now, that vLLM's imports for its commands take."""
    before = processor_time()
    program = "import vllm.entrypoints.cli.main, vllm.engine.arg_utils"
    subprocess.run([sys.executable, "-c", program], env=os.environ | ENVIRONMENT, capture_output=True, check=True)
    return processor_time() - before


def test_there_are_forty_and_more() -> None:
    assert len(BAD_INPUTS) >= 40
    assert BAD_INPUTS.keys() >= STARTED
    for names in (BAD_INPUTS, STARTED):
        assert {BAD_INPUTS[name].arguments[0] for name in names} >= {
            *("serve", "demo", "bench", "pair", "swift", "methods", "doctor", "convert")
        }


@pytest.mark.parametrize(("name", "is_started"), list(ways()))
def test_a_bad_input_is_one_sentence(name: str, is_started: bool, tmp_path: Path, taken: int, imports: float) -> None:
    case = BAD_INPUTS[name]
    case.prepare(tmp_path)
    before = processor_time()
    done = run(case, tmp_path, taken, is_started)
    used = processor_time() - before
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr
    *others, last = done.stderr.splitlines()
    assert (sentence := ERROR.fullmatch(last)) is not None, done.stderr[-2000:]
    assert not [line for line in (*done.stdout.splitlines(), *others) if ERROR.match(line)]
    for word in case.names:
        assert word.replace("PORT", str(taken)) in sentence[1]
    assert last.endswith(".") or last.startswith("vllm serve: ")
    assert used < TIMES_THE_IMPORTS * imports
