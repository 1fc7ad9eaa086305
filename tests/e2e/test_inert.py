"""With the plug-in installed and none of our methods asked for, a server is vLLM as it was."""

import re
from importlib import metadata

from openai import OpenAI

from tests.e2e.conftest import Client
from vllm_specext.measure.bundled import TARGET
from vllm_specext.measure.server import Server

NUMBER = re.compile(r"[0-9a-f]{8,}|\d+")


def startup_lines(server: Server) -> set[str]:
    """What vLLM logged until the server was ready, as words in alphabetical order.

    Times, process ids, ports, sizes and random names are masked; some lines print a set, whose order is random.
    """
    text = server.log.read_text(errors="replace").partition("Application startup complete")[0]
    lines = (NUMBER.sub("0", line.replace(str(TARGET), "TARGET")) for line in text.splitlines() if " pid=" in line)
    return {" ".join(sorted(line.replace(",", " ").split())) for line in lines}


def sampled(openai: OpenAI, prompts: list[str]) -> list[list[int]]:
    options = {"model": "bundled", "max_tokens": 32, "seed": 7, "extra_body": {"return_token_ids": True}}
    return [
        openai.completions.create(prompt=prompt, temperature=temperature, **options).choices[0].token_ids
        for prompt in prompts[:4]
        for temperature in (0.0, 1.0)
    ]


def test_the_server_logs_what_it_logs_without_the_plug_in(unused: Server, stock: Server) -> None:
    assert "vllm_specext" in metadata.entry_points(group="vllm.general_plugins").names
    assert startup_lines(unused) == startup_lines(stock)
    assert not any("specext" in line for line in startup_lines(unused))


def test_answers_are_the_same_greedy_and_seeded(
    unused: Server, stock: Server, client: Client, prompts: list[str]
) -> None:
    assert sampled(client(unused), prompts) == sampled(client(stock), prompts)


def test_nothing_is_drafted(unused: Server) -> None:
    assert unused.metric("vllm:spec_decode_num_drafts_total") == 0
    assert unused.metric("vllm:generation_tokens_total") > 0
