"""What an operator sees of a server: its start-up log, what is not in the log, and what two engines at once do."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, OpenAI

from tests.e2e.conftest import KEY, Client
from tests.e2e.test_openai_client import complete
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import ALWAYS as ALWAYS_DRAFTING
from vllm_specext.measure.bundled import DFLASH_TREE, GRIFFIN_CHAIN, GRIFFIN_TREE, TARGET
from vllm_specext.measure.server import HOST, Server, speculation
from vllm_specext.remote.device.socket import address, connecting

TREE = "trees of at most 24 nodes, depth 4, top-k 4"
OWN_MEMORY = r"\d+ bytes a token, [\d.]+ MiB for a request of 1024 tokens; the target's take 12288 bytes a token"
START_UP: dict[str, dict[str, str]] = {
    "griffin": {"Drafter": r".*/griffin", "Drafts": TREE, "Drafter's keys and values": OWN_MEMORY},
    "moa": {"Drafter": r".*/moa", "Drafts": TREE, "Drafter's keys and values": OWN_MEMORY},
    "swift": {
        "Drafter": "the target itself",
        "Drafts": r"trees of at most 8 nodes, depth \d+, top-k \d+",
        "Drafter's keys and values": "none; it uses the target's",
    },
    "slem": {
        "Drafter": r".*/foreign_bpe",
        "Drafts": "chains of at most 4 tokens",
        "Drafter's own cache": r"[\d.]+ MiB for all requests; \d+ bytes a token, [\d.]+ MiB for a request of .*",
    },
}
"""By method; the values are regular expressions."""
ALWAYS = {
    "vllm-specext": r"\d+\.\d+\.\d+ with vLLM 0\.3[23].*",
    "Drafted tokens by number of running requests": r".*\d+.*",
    "Verification": "the target's own sampler",
    "CUDA graphs of drafts": "none",
}
TWICE: dict[str, dict[str, Any]] = {
    "adaptive": {"method": "griffin", "model": GRIFFIN_TREE["model"], "keep_step_costs": False},
    "chain": GRIFFIN_CHAIN,
    "tree": GRIFFIN_TREE,
    "dflash": DFLASH_TREE,
    "draft-model": GRIFFIN_TREE | {"method": "draft-model-tree", "model": str(TARGET)},
    "given": ALWAYS_DRAFTING | {"method": "given", "use_prompt": True, "match_tokens": 1},
}
PROMPT = "def unmistakable_prompt_of_a_client():"


def test_the_start_up_log_has_one_line_per_fact(drafting: Server) -> None:
    text, method = drafting.log.read_text(), drafting.log.stem
    for name, fact in ({"Speculative method": method} | ALWAYS | START_UP[method]).items():
        lines = re.findall(rf"(?m)\] {re.escape(name)}: (.*)$", text)
        assert len(lines) == 1, (name, lines)
        assert re.fullmatch(fact, lines[0]), (name, lines)


def test_a_server_without_clients_says_so_to_one(griffin: Server) -> None:
    place = address(f"ws://{HOST}:{griffin.port}", insecure=False)
    with pytest.raises(ConfigurationError, match=r"it needs client_drafts in its --speculative-config\.$"):
        asyncio.run(connecting(place, None)())  # type: ignore[arg-type]


def test_neither_prompts_nor_answers_nor_keys_are_logged(served: Server) -> None:
    def client(key: str) -> OpenAI:
        return OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0, timeout=600)

    whole = complete(client(KEY), PROMPT).choices[0].text
    answer: Any = client(KEY).chat.completions.create(
        model="bundled", messages=[{"role": "user", "content": PROMPT}], max_tokens=8, temperature=0
    )
    assert len(whole) > 20
    assert answer.choices[0].message.content
    for key, options, status in (
        ("sk-another-key", {}, 401),
        (KEY, {"extra": {"vllm_xargs": {"speculation": "off"}}}, 400),
        (KEY, {"temperature": -1}, 400),
        (KEY, {"max_tokens": "many"}, 400),
    ):
        with pytest.raises(APIStatusError) as refused:
            complete(client(key), PROMPT, **options)  # type: ignore[arg-type]
        assert refused.value.status_code == status
    text = served.log.read_text()
    assert "401 Unauthorized" in text  # requests are logged, and that is all of them
    assert not [secret for secret in (KEY, "sk-another-key", PROMPT, whole[:20]) if secret in text]


@pytest.mark.extended
@pytest.mark.parametrize("speculative", TWICE.values(), ids=TWICE)
def test_two_data_parallel_engines_give_the_stock_servers_tokens(
    logs: Path, speculative: dict[str, Any], client: Client, without: OpenAI, prompts: list[str]
) -> None:
    def ids(openai: OpenAI) -> list[list[int]]:
        with ThreadPoolExecutor(8) as pool:
            return [r.choices[0].token_ids for r in pool.map(lambda prompt: complete(openai, prompt), prompts[:12])]

    # Two processes answer, and Prometheus adds up their figures only where it is imported after they are told to.
    two = ("--data-parallel-size=2",)
    with Server(logs / "data-parallel.log", speculative, arguments=two, forked=False).start() as server:
        assert ids(client(server)) == ids(without)
        engines = {s.labels["engine"]: s.value for s in server.samples() if s.name == "vllm:request_success_total"}
        assert speculation(server).verifications > 0
    assert set(engines) == {"0", "1"}
