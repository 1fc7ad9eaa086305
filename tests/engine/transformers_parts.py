"""The engine beside transformers: what plain decoding says, and what is drafted at every level of every tree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.engine.modules import Layout, Module
from tests.engine.test_tree_drafting import REQUEST, Replay, accepted, drafts, record
from tests.engine.workload import GREEDY

Engines = Callable[..., dict[str, Any]]


def plain_tokens_are_those_of_transformers(engines: Engines, llm: dict[str, Any]) -> None:
    """Of the engine ``llm`` without drafts, greedily."""
    torch.manual_seed(1)
    prompts = [torch.randint(4, 2048, (length,)).tolist() for length in (1, 3, 64, 65, 200)]
    asked = [{"ids": ids, "sampling": GREEDY | {"max_tokens": 24, "ignore_eos": True}} for ids in prompts]
    result = engines(llm, rounds=[asked])
    reference = transformers.AutoModelForCausalLM.from_pretrained(llm["model"], dtype=torch.float32)
    for ids, output in zip(prompts, result["outputs"], strict=True):
        expected = reference.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False, eos_token_id=None)
        assert output["ids"] == expected[0, len(ids) :].tolist()


def levels_are_those_of_the_module(
    engines: Engines,
    llm: dict[str, Any],
    target: tuple[Path, Layout],
    passes: Path,
    largest: float = 1e-5,
    **switches: Any,
) -> None:
    """Of the drafts of the engine ``llm``, whose passes are written to a file. ``target``: its folder, and how its
    module is built. ``largest``: difference, as a share of the largest number."""
    sequence, made_in = record(engines, passes, llm, **switches)
    assert sequence[: len(REQUEST["ids"])] == REQUEST["ids"]
    module = Module(*target)
    replay = Replay(module, module.logits)
    made = drafts(made_in)
    assert len(made) >= 5
    for first, levels in made:
        replay.draft(accepted(first, levels), levels)
    assert replay.largest < largest
