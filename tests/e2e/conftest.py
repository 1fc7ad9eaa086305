"""Servers on the bundled models, each started once: vLLM alone, the plug-in unused, and one of every method."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from vllm_specext.measure.bundled import GRIFFIN_TREE, MOA_TREE, PROMPTS, SLEM, SWIFT
from vllm_specext.measure.server import Server

# Servers that run side by side must not be bound to the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

Client = Callable[[Server], OpenAI]

GRIFFIN = GRIFFIN_TREE
DEPTH: int = GRIFFIN["tree_depth"]
"""Most drafted tokens that one verification accepts."""


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
    with Server(logs / "griffin.log", GRIFFIN) as server:
        yield server.start()


@pytest.fixture(scope="module")  # where it is used, so that it does not take memory from the other servers' tests
def moa(logs: Path) -> Iterator[Server]:
    with Server(logs / "moa.log", MOA_TREE) as server:
        yield server.start()


@pytest.fixture(scope="module")
def swift(logs: Path) -> Iterator[Server]:
    """Keeps what it finds in ``swift.json`` beside its log."""
    with Server(logs / "swift.log", SWIFT | {"swift_save": str(logs / "swift.json")}) as server:
        yield server.start()


@pytest.fixture(scope="module")
def slem(logs: Path) -> Iterator[Server]:
    with Server(logs / "slem.log", SLEM) as server:
        yield server.start()


@pytest.fixture(scope="session")
def client() -> Client:
    return lambda server: OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600)


@pytest.fixture(scope="session")
def with_drafts(griffin: Server, client: Client) -> OpenAI:
    return client(griffin)


@pytest.fixture(scope="session")
def without(stock: Server, client: Client) -> OpenAI:
    return client(stock)


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    return [row["text"] for row in json.loads(PROMPTS.read_text(encoding="utf-8"))]
