"""Servers that are measured: those that a run starts, and those that the user has running."""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI

from vllm_specext.bench.configurations import Configuration
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import compared_arguments, served
from vllm_specext.measure.sampling import GREEDY, Sampling
from vllm_specext.measure.server import HOST, Server, speculation
from vllm_specext.measure.turns import Answer, Turn

AT_ONCE = 16
V2_IN_LOG = "Using V2 Model Runner"


class OwnServer(Server):
    """``vllm-specext serve`` with a configuration, on the bundled target or the user's."""

    def __init__(self, configuration: Configuration, target: str | None, arguments: Sequence[str], log: Path) -> None:
        super().__init__(log, environment=configuration.environment)
        self.command = [sys.executable, "-m", "vllm_specext", "serve", served(target)]
        self.command += [f"--host={HOST}", f"--port={self.port}", *compared_arguments(target, arguments)]
        if configuration.speculative is not None:
            self.command.append(f"--speculative-config={json.dumps(configuration.speculative)}")

    @property
    def model_runner(self) -> str:
        return "V2" if V2_IN_LOG in self.log.read_text(errors="replace") else "V1"


@dataclass(frozen=True)
class Model:
    """A server's model: the name to ask for, the folder or hub id it came from, and how long a sequence may be."""

    name: str
    root: str
    max_model_len: int


def model_of(url: str) -> Model:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
            first = json.load(answer)["data"][0]
        return Model(first["id"], first["root"], first["max_model_len"])
    except (urllib.error.URLError, OSError, ValueError, KeyError, IndexError) as error:
        raise ConfigurationError(f"no vLLM server answers at {url} ({type(error).__name__}).") from None


def turn(server: Server, model: Model, prompts: Sequence[list[int]], tokens: int, sampling: Sampling = GREEDY) -> Turn:
    """Ask ``server``, one request at a time, streamed as a user would see them. A prompt's place is its seed."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    before = speculation(server)
    begun = time.perf_counter()
    answers = [ask(client, model.name, prompt, tokens, sampling.of(i)) for i, prompt in enumerate(prompts)]
    duration = time.perf_counter() - begun
    return Turn(answers, duration, speculation(server) - before)


def answers(url: str, model: Model, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
    """Greedy answers of the server at ``url``, ``AT_ONCE`` at a time, where time does not count."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [
            answer.tokens
            for answer in pool.map(lambda prompt: ask(client, model.name, prompt, tokens, GREEDY.of(0)), prompts)
        ]


def ask(client: OpenAI, model: str, prompt: list[int], tokens: int, drawn: Mapping[str, Any]) -> Answer:
    """The answer to one request; ``drawn`` is what it says of sampling."""
    begun = time.perf_counter()
    first = 0.0
    received: list[int] = []
    stream = client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=tokens,
        **drawn,
        stream=True,
        extra_body={"return_token_ids": True},
    )
    for chunk in stream:
        if chunk.choices and (ids := chunk.choices[0].token_ids):  # vLLM's addition
            first = first or time.perf_counter() - begun
            received += ids
    return Answer(received, first, time.perf_counter() - begun, len(prompt))
