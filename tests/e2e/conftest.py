"""Servers on the bundled models, each started once: vLLM alone, the plug-in unused, one of every method, and one that
wants a key."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from vllm_specext.measure.bundled import GRIFFIN_TREE, MOA_TREE, MODELS, PROMPTS, SLEM, SWIFT
from vllm_specext.measure.server import Server

# Servers that run side by side must not be bound to the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

Client = Callable[[Server], OpenAI]

GRIFFIN = GRIFFIN_TREE
DEPTH: int = GRIFFIN["tree_depth"]
"""Most drafted tokens that one verification accepts."""
KEY = "sk-an-operators-secret"


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def stock(logs: Path) -> Iterator[Server]:
    """vLLM without our plug-in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_PLUGINS", "")
        server = Server(logs / "stock.log").start()
    with server:
        yield server


@pytest.fixture(scope="session")
def unused(logs: Path) -> Iterator[Server]:
    """vLLM with our plug-in, and none of our methods asked for."""
    with Server(logs / "unused.log") as server:
        yield server.start()


@pytest.fixture(scope="session")
def griffin(logs: Path) -> Iterator[Server]:
    """Started as a user's is: its engine and its worker load the plug-in themselves."""
    with Server(logs / "griffin.log", GRIFFIN, forked=False) as server:
        yield server.start()


@pytest.fixture(
    scope="session",
    params=["griffin", "swift", *(pytest.param(name, marks=pytest.mark.extended) for name in ("moa", "slem"))],
)
def drafting(request: pytest.FixtureRequest, logs: Path) -> Iterator[Server]:
    """A server of each method. Those that only these tests use end before the next begins, for the memory they take.

    SWIFT's keeps what it finds in ``swift.json`` beside its log.
    """
    if request.param == "griffin":
        yield request.getfixturevalue("griffin")
        return
    swift = SWIFT | {"swift_save": str(logs / "swift.json")}
    with Server(
        logs / f"{request.param}.log", {"moa": MOA_TREE, "swift": swift, "slem": SLEM}[request.param]
    ) as server:
        yield server.start()


@pytest.fixture(scope="session")
def served(logs: Path) -> Iterator[Server]:
    """A drafter that is served by its own name, to clients that have the ``KEY``."""
    with Server(logs / "served.log", target=MODELS / "griffin", arguments=(f"--api-key={KEY}",)) as server:
        yield server.start()


@pytest.fixture(scope="session")
def client() -> Client:
    return lambda server: OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=600)


@pytest.fixture(scope="session")
def with_drafts(griffin: Server, client: Client) -> OpenAI:
    return client(griffin)


@pytest.fixture(scope="session")
def without(stock: Server, client: Client) -> OpenAI:
    return client(stock)


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    return [row["text"] for row in json.loads(PROMPTS.read_text(encoding="utf-8"))]
