"""Clients that draft and an engine that verifies, in one process, over the link of ``tests/unit/remote_link.py``.

    python -m tests.engine.client_sessions SPEC.json OUT.json

``SPEC``: ``llm``; ``sessions``, each with ``ids``, ``sampling`` (fields of ``protocol.Sampling``), ``max_tokens``,
``answer`` (that of plain decoding) and ``knows`` (how often the drafter is right); ``kind`` of rows; ``preset`` of the
link; whether it is ``cut`` now and then; ``sabotage``, as for ``runner.py``; prompts that are ``drafted`` for.
``OUT``: ids and ``exact`` of each session, the first ones' rows, counters, and the server's trees for those prompts.
"""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from tests.engine import runner

ROWS_TOLD = 4


def main(spec_path: str, out_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    runner.replace_in_vllm(spec)
    from vllm import LLM

    from tests.unit.remote_link import run

    llm = LLM(**spec["llm"], disable_log_stats=False)
    found = run(sessions(llm, spec))
    counters = {m.name: m.value for m in llm.get_metrics() if m.name in runner.COUNTERS}
    trees = server_trees(llm, spec.get("drafted", []))
    kept = len(runner.model_runner(llm).speculator.clients.kept)
    Path(out_path).write_text(json.dumps({"sessions": found, "counters": counters, "kept": kept, "trees": trees}))


def server_trees(llm: Any, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Of each prompt with the token after it: the tree that the server's own drafter makes, with which sharpness, and
    the rows of the prompt, ``float16``, as they cross the wire."""
    from vllm import SamplingParams

    import vllm_specext.engine.drafting.speculator as module
    from vllm_specext.engine.clients.verifier import TAKE, params_for
    from vllm_specext.remote.drafted import Drafted
    from vllm_specext.remote.protocol import Sampling
    from vllm_specext.remote.rows import FLOAT16, RowFormat

    stock, drafts = module.hand_over, []
    roots = runner.model_runner(llm).speculator.roots

    def hand_over(*args: Any) -> Any:
        drafts.append((stock(*args), roots.sharpness[0].item()))
        return drafts[-1][0]

    module.hand_over = hand_over
    layer = runner.model_runner(llm).speculator.verified_attention
    form = RowFormat(layer.num_kv_heads, layer.head_size, FLOAT16)
    found = []
    for prompt in prompts:
        drafts.clear()
        # Of two tokens, because vLLM 0.33 drafts nothing after a request's last one.
        two = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        (output,) = llm.generate({"prompt_token_ids": prompt}, two, use_tqdm=False)
        made, sharpness = drafts[0]
        ids, parents = made.tokens[0].tolist(), made.topology.parents[0, 1:].tolist()
        ticket, params = params_for(Drafted.chain([]), Sampling(0), form, 0)
        llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
        (rows,) = llm.collective_rpc(TAKE, args=(ticket,))
        text = [*prompt, output.outputs[0].token_ids[0]]
        found.append({"text": text, "ids": ids, "parents": parents, "rows": rows.hex(), "sharpness": sharpness})
    module.hand_over = stock
    return found


class Verifier:
    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def for_user(self, key: str) -> "Verifier":
        return self

    async def verify(self, text: list[int], tree: Any, sampling: Any, form: Any, first_row: int, extra: int) -> Any:
        from vllm_specext.engine.clients.verifier import TAKE, params_for
        from vllm_specext.remote.verifier import Outcome

        ticket, params = params_for(tree, sampling, form, first_row, extra)
        (output,) = self.llm.generate({"prompt_token_ids": text}, params, use_tqdm=False)
        (rows,) = self.llm.collective_rpc(TAKE, args=(ticket,))
        await asyncio.sleep(0.01)
        return Outcome(list(output.outputs[0].token_ids), rows, 10.0)


async def sessions(llm: Any, spec: dict[str, Any]) -> list[dict[str, Any]]:
    from tests.unit.remote_link import FINGERPRINT, PRESETS, Link, ToyDrafter
    from tests.unit.test_remote_client import cutting
    from vllm_specext.methods.end_ids import ends_of
    from vllm_specext.remote.answer import Settings
    from vllm_specext.remote.client import Client
    from vllm_specext.remote.events import Done, Retracted, Said
    from vllm_specext.remote.pace import Pace
    from vllm_specext.remote.protocol import Sampling, Welcome
    from vllm_specext.remote.rows import RowFormat
    from vllm_specext.remote.server import Served
    from vllm_specext.remote.sessions import Sessions

    class Knowing(ToyDrafter):
        """Says what plain decoding has said after the same text, or anything."""

        def about(self, prompt: list[int], answer: list[int]) -> "Knowing":
            self.whole, self.keys, self.values = prompt + answer, [], []
            return self

        def _guess(self, text: list[int]) -> int:
            knows = self.whole[: len(text)] == text and len(text) < len(self.whole)
            if knows and self.chooser.random() < self.knows:
                return self.whole[len(text)]
            return self.chooser.randrange(vocabulary)

        def take(self, first: int, keys: Tensor, values: Tensor) -> int:
            assert first <= len(self.keys), "rows are missing"
            self.keys[first:], self.values[first:] = list(keys), list(values)
            return len(self.keys)

    config = llm.llm_engine.vllm_config
    vocabulary, length = config.model_config.get_vocab_size(), config.model_config.max_model_len
    options = config.speculative_config.options
    layer = runner.model_runner(llm).speculator.verified_attention
    limits = Welcome(0, "bundled", vocabulary, length, options.num_speculative_tokens, options.tree_depth)
    ends = frozenset(ends_of(config.model_config))
    sizes = (layer.num_kv_heads, layer.head_size)
    clock = asyncio.get_running_loop().time
    served = Served(limits, FINGERPRINT, *sizes, ends, Sessions(length, clock), Verifier(llm))
    found = []
    for number, session in enumerate(spec["sessions"]):
        link = Link(PRESETS[spec["preset"]], lambda: served, seed=number)
        sampling = Sampling(**session["sampling"])
        drafter = Knowing(sampling, session["knows"], random.Random(number)).about(session["ids"], session["answer"])
        settings = Settings(FINGERPRINT, RowFormat(*sizes, spec["kind"]), back_online="rewrite", ends=ends)
        cutter = asyncio.ensure_future(cutting(link, random.Random(number))) if spec["cut"] else None
        pace = Pace(always_draft=number % 4 != 3)  # the others get plainly decoded text in pieces, too
        client = Client(link.connect, drafter, settings, random.Random(number), pace)
        ids: list[int] = []
        async for event in client.answer(session["ids"], sampling, session["max_tokens"]):
            if isinstance(event, Said):
                ids += event.ids
            elif isinstance(event, Retracted):
                del ids[-event.count :]
            else:
                assert isinstance(event, Done)
                done = event
        if cutter is not None:
            cutter.cancel()
        link.end()
        rows = [[one.tolist() for one in side] for side in (drafter.keys, drafter.values)]
        made = {"ids": ids, "exact": done.exact, "finish": done.finish, "calls": done.traffic.calls}
        told = {"rows": rows} if number < ROWS_TOLD else {}
        found.append(made | told | {"kept": len(drafter.keys), "whole": session["ids"] + ids})
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
