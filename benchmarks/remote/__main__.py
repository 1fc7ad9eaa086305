"""Clients that draft, by drafter, link and server: calls, bytes and tokens per second; and what they say after a cut.

    python -m benchmarks.remote --output benchmarks/results/cpu

The bundled target and MoA drafter answer the demonstration's held-out prompts that do not loop, greedily. Trees, tokens
and frames are real; time is virtual: the link of ``tests/unit/remote_link.py`` delays frames, a verification takes 1.25
times the server's time of a token, and a draft the time of a laptop's GPU. Rows are padded to the width that those of a
Llama 3 8B's drafter have. So the figures do not depend on the machine. Plain streaming is computed: it pays the round
trip once. Writes ``remote.json``.
"""

import argparse
import asyncio
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

PRESETS = ("base", "5g", "4g")
TOKEN_MS = (7.07, 30.0)
"""The server's time of a token: an H100 with an 8B model, and the paper's server."""
DRAFT_MS = 15.0
LENGTH = 64
CUTS, AFTER = (10, 25, 50), 16


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="folder for remote.json")
    parser.add_argument("--prompts", type=int, default=18)
    args = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        result = Measurement(Path(folder), args.prompts).result()
    for row in (*result["links"], *result["cuts"]):
        print(json.dumps(row))
    if args.output is not None:
        (args.output / "remote.json").write_text(json.dumps(result, indent=1) + "\n")


class Measurement:
    def __init__(self, folder: Path, count: int) -> None:
        from benchmarks.own_process import bundled_engine
        from benchmarks.remote.independent import Independent
        from benchmarks.remote.wide import exact
        from vllm_specext.measure.bundled import MODELS, TARGET, bundled_prompts
        from vllm_specext.measure.loops import is_loop
        from vllm_specext.remote.device import bundle as bundles
        from vllm_specext.remote.device.make_bundle import make

        moa = {"method": "moa", "model": str(MODELS / "moa"), "client_drafts": True, "tree_top_k": 8}
        self.engine = bundled_engine(moa)
        make(str(TARGET), MODELS / "moa", folder / "bundle", torch.float32)
        self.bundle = bundles.read(folder / "bundle")
        self.moa = bundles.drafter_of(folder / "bundle", self.bundle)
        self.other = Independent(MODELS / "foreign_bpe", TARGET)
        self.own = exact(*self.bundle.row_heads)
        texts = [self.engine.tokenizer(prompt["text"])["input_ids"][:256] for prompt in bundled_prompts()]
        answers = [self.plain(text) for text in texts]
        whole = [(text, ids) for text, ids in zip(texts, answers, strict=True) if not is_loop(ids)]
        self.asked = [(text, ids) for text, ids in whole if len(ids) == LENGTH][:count]

    def plain(self, text: list[int]) -> list[int]:
        from vllm import SamplingParams

        off = SamplingParams(temperature=0, max_tokens=LENGTH, extra_args={"speculation": False})
        (output,) = self.engine.llm.generate({"prompt_token_ids": text}, off, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    def drafters(self) -> Iterator[tuple[str, Any]]:
        from benchmarks.remote.wide import own_heads

        def moa() -> Any:
            return own_heads(self.moa.for_another_text(), self.own.heads)

        yield "MoA in every call", moa
        yield "MoA where it pays", moa
        yield "independent, in every call", lambda: self.other

    def result(self) -> dict[str, Any]:
        from tests.unit.remote_link import PRESETS as LINKS
        from tests.unit.remote_link import run

        links = []
        for token_ms in TOKEN_MS:
            for preset in PRESETS:
                kind = LINKS[preset]
                seconds = (kind.up + kind.down + LENGTH * token_ms) / 1000
                row = {"link": preset, "token_ms": token_ms, "tokens_per_second": LENGTH / seconds}
                links.append({"drafter": "none: plain streaming", **row})
                for name, made in self.drafters():
                    links.append({"drafter": name, **run(self.over(preset, token_ms, name, made))})
        facts = self.engine.facts() | {"prompts": len(self.asked), "tokens": LENGTH, "draft_ms": DRAFT_MS}
        return {"facts": facts, "links": links, "cuts": asyncio.run(self.cuts())}

    async def over(self, preset: str, token_ms: float, name: str, made: Any) -> dict[str, Any]:
        from benchmarks.remote.wide import WideVerifier, wire
        from tests.unit.remote_link import FINGERPRINT, Link
        from tests.unit.remote_link import PRESETS as LINKS
        from vllm_specext.remote.answer import Settings
        from vllm_specext.remote.client import Client
        from vllm_specext.remote.events import Done, Said
        from vllm_specext.remote.pace import Pace
        from vllm_specext.remote.protocol import Sampling, Welcome
        from vllm_specext.remote.server import Served
        from vllm_specext.remote.sessions import Sessions

        clock, form = asyncio.get_running_loop().time, wire(self.own)
        limits = Welcome(0, "bundled", self.bundle.vocab_size, 512, 62, 6)
        verifier: Any = WideVerifier(self.engine.llm, self.own, token_ms / 1000, asyncio.sleep)
        if not name.startswith("MoA"):
            verifier = NoRows(verifier)
        served = Served(limits, FINGERPRINT, form.heads, form.head_size, frozenset(), Sessions(512, clock), verifier)
        pace = Pace(always_draft=name.endswith("in every call"))
        calls, up, down, seconds, prompt_bytes = 0, 0, 0, 0.0, 0
        for number, (text, expected) in enumerate(self.asked):
            link = Link(LINKS[preset], lambda: served, seed=number)
            client = Client(link.connect, Timed(made()), Settings(FINGERPRINT, form), random.Random(number), pace)
            ids: list[int] = []
            begun = clock()
            async for event in client.answer(text, Sampling(0), LENGTH):
                if isinstance(event, Said):
                    if not ids:
                        prompt_bytes += link.down.bytes + link.up.bytes
                        begun, first = clock(), len(event.ids)
                    ids += event.ids
                elif isinstance(event, Done):
                    ended, traffic = clock(), event.traffic
            link.end()
            assert ids == expected, "the client's answer is not the target's"
            assert traffic.offline == 0
            calls, seconds = calls + traffic.calls, seconds + (ended - begun) * LENGTH / (LENGTH - first)
            up, down = up + traffic.bytes_up, down + traffic.bytes_down
        tokens = LENGTH * len(self.asked)
        return {
            "link": preset,
            "token_ms": token_ms,
            "tokens_per_call": tokens / calls,
            "calls_per_100": 100 * calls / tokens,
            "prompt_bytes": prompt_bytes / len(self.asked),
            "bytes_per_token": (up + down - prompt_bytes) / tokens,
            "tokens_per_second": tokens / seconds,
        }

    async def cuts(self) -> list[dict[str, Any]]:
        """What drafters say alone after the target's first tokens: how much of it the target would have said, and the
        target's nats for each token."""
        from transformers import AutoModelForCausalLM

        from vllm_specext.measure.bundled import TARGET

        target = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
        rows = []
        for cut in (cut for cut in CUTS if cut + AFTER <= LENGTH + 2):
            said: dict[str, list[tuple[float, float]]] = {}
            for text, answer in self.asked:
                known, wanted = text + answer[:cut], answer[cut : cut + AFTER]
                for name, ids in (await self.alone(known, len(wanted))).items():
                    same = float(np.mean([one == other for one, other in zip(ids, wanted, strict=True)]))
                    said.setdefault(name, []).append((same, nats(target, known, ids)))
            for name, figures in said.items():
                same, surprise = np.mean(figures, axis=0).tolist()
                rows.append({"cut": cut, "drafter": name, "same": same, "nats": surprise})
        return rows

    async def alone(self, known: list[int], count: int) -> dict[str, list[int]]:
        from benchmarks.remote.wide import WideVerifier, own_heads, wire
        from vllm_specext.remote.drafted import Drafted
        from vllm_specext.remote.protocol import Sampling

        verifier = WideVerifier(self.engine.llm, self.own, 0.0, asyncio.sleep)
        form = wire(self.own)
        outcome = await verifier.verify(known, Drafted.chain([]), Sampling(0), form, 0, 0)
        moa = own_heads(self.moa.for_another_text(), self.own.heads)
        # When the link is cut, the last token's row has not come.
        moa.take(0, *form.unpack(outcome.rows[: (len(known) - 1) * form.size]))
        found: dict[str, list[int]] = {"the target": self.plain(known)[:count]}
        for name, drafter in (("MoA, rows", moa), ("independent", self.other)):
            text = list(known)
            while len(text) < len(known) + count:
                text.append(drafter.next_token(text, Sampling(0)))
            found[name] = text[len(known) :]
        return found


class Timed:
    """A drafter that takes its time of the virtual clock."""

    def __init__(self, drafter: Any) -> None:
        self.drafter, self.take, self.say = drafter, drafter.take, drafter.next_token

    async def draft(self, text: list[int], max_nodes: int) -> Any:
        await asyncio.sleep(DRAFT_MS / 1000)
        return self.drafter.tree(text, max_nodes)


class NoRows:
    """A verifier of whose rows none are sent."""

    def __init__(self, verifier: Any) -> None:
        self.verifier = verifier

    def for_user(self, key: str) -> "NoRows":
        return self

    async def verify(self, *args: Any) -> Any:
        from dataclasses import replace

        return replace(await self.verifier.verify(*args), rows=b"")


@torch.inference_mode()
def nats(target: Any, known: list[int], ids: list[int]) -> float:
    """The target's surprise at each of ``ids``, on average."""
    log_probs = target(torch.tensor([known + ids])).logits[0].log_softmax(-1)
    return -float(np.mean([log_probs[len(known) + place - 1, token] for place, token in enumerate(ids)]))


if __name__ == "__main__":
    main()
