"""What prompt lookup brings before draft trees: tokens per verification.

    python -m benchmarks.prompt_lookups --output benchmarks/results/cpu

Three kinds of prompts, one at a time and greedy; those whose plain continuation is a loop do not count. The
demonstration's held-out prompts say nothing twice. The bundled target cannot follow an instruction to edit, so that
what an edit is like has two stand-ins: the beginning of a file of Python's standard library after the target's own
answer to it, in which three lines were changed; and the same after the answer to another file. GRIFFIN drafts trees of
24 nodes, alone and with up to 24 tokens looked up. Nothing is timed. Every answer must be plain decoding's, else
nothing is written. Writes ``prompt_lookups.json``.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.given_edits import PROMPT, sources, with_changed_lines
from benchmarks.held_out_rows import show
from benchmarks.tokens_per_verification import answers, check_same, forced, load_engine, loops
from vllm_specext.bench.configurations import Configuration
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Turn

FILES, DRAFTED = 48, 24
GRIFFIN = {"method": "griffin", "model": str(MODELS / "griffin"), "num_speculative_tokens": DRAFTED, "tree_depth": 6}
LOOKING = {"prediction_tokens": DRAFTED, "use_prompt": True}
CONFIGURATIONS = {
    "trees": Configuration("griffin", GRIFFIN),
    "trees and lookups": Configuration("griffin", GRIFFIN | LOOKING),
}
KINDS = ("held-out prompts", "after the edited answer", "after another answer")


def beginnings(tokenizer: Any) -> list[list[int]]:
    """Of files, as many tokens of each."""
    found = (tokenizer(text)["input_ids"][:PROMPT] for _, text in sources())
    return [ids for ids in found if len(ids) == PROMPT][:FILES]


def after_answers(tokenizer: Any, files: Sequence[list[int]], plain: Sequence[Turn]) -> Iterator[tuple[str, list[int]]]:
    """Prompts of the last two kinds."""
    drawn = random.Random(0)
    changed = [with_changed_lines(tokenizer.decode(turn.tokens[0]), drawn) for turn in plain]
    edited = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in changed if text is not None]
    kept = [ids for ids, text in zip(files, changed, strict=True) if text is not None]
    for place, ids in enumerate(kept):
        yield KINDS[1], edited[place] + ids
        yield KINDS[2], edited[(place + 1) % len(edited)] + ids


def measure(held_out: Sequence[list[int]], place: Path) -> Iterator[dict[str, Any]]:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    asked = [(KINDS[0], list(ids)) for ids in held_out]
    with load_engine(Configuration("plain"), place) as engine:
        files = beginnings(tokenizer)
        asked += after_answers(tokenizer, files, answers(engine, files, None, "answers to files"))
        prompts = [ids for _, ids in asked]
        plain = answers(engine, prompts, None, "plain")
    for name, configuration in CONFIGURATIONS.items():
        with load_engine(forced(configuration, DRAFTED), place) as engine:
            given = answers(engine, prompts, None, name)
        check_same(name, given, plain)
        for kind in KINDS:
            of_kind = zip(asked, given, plain, strict=True)
            own = [turn for (one, _), turn, other in of_kind if one == kind and not loops(other)]
            found = sum((turn.speculation for turn in own), Speculation()).acceptance_length
            yield {"drafts": name, "prompts": kind, "count": len(own), "tokens_per_verification": round(found, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for prompt_lookups.json")
    show("prompt_lookups", "tokens per verification", measure, parser.parse_args().output)


if __name__ == "__main__":
    main()
