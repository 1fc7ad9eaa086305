"""GRIFFIN's chains beside those of vLLM's EAGLE-3: the same prompts in turns, one engine after the other.

    python -m benchmarks.beside_eagle3 --output benchmarks/results/cpu

Both drafters are bundled, of one size, and trained on the same text for as many steps. ``griffin-chain`` drafts four
tokens as ``eagle3`` does; ``griffin-chain, chosen`` drafts at most four, as many as the scheduler finds worth it, which
is the default. Every engine answers the prompts once at a load before that is measured, because passes are recorded
then. In each round the engines take turns, and what counts is the ratio of a round's speeds. A prompt whose plain
continuation is a loop is left out. Every answer must have the tokens of plain decoding, else nothing is written. Writes
``beside_eagle3.json``.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from vllm_specext.measure.arguments import MOST_REQUESTS, compared_arguments
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, MODELS, TARGET, as_long_as_it_pays, bundled_prompts
from vllm_specext.measure.engine_process import EngineProcess
from vllm_specext.measure.loops import is_loop
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Turn, in_turns, same_tokens, speedups, spread

LOADS = (1, 4, MOST_REQUESTS)
ROUNDS, TOKENS, WAVES = 15, 192, 2
"""Each load is kept up for so many waves of requests at least."""
BASELINE, PLAIN = "eagle3", "plain"
EAGLE3: dict[str, Any] = {"method": "eagle3", "model": str(MODELS / "eagle3"), "num_speculative_tokens": 4}
ENGINES: dict[str, dict[str, Any] | None] = {
    PLAIN: None,
    BASELINE: EAGLE3,
    "griffin-chain": GRIFFIN_CHAIN,
    "griffin-chain, chosen": as_long_as_it_pays(GRIFFIN_CHAIN) | {"keep_step_costs": False},
}


@contextmanager
def engines() -> Iterator[dict[str, EngineProcess]]:
    """All of them, up."""
    arguments = [f"--model={TARGET}", *compared_arguments(None, [])]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="beside-eagle3-")))
        yield {
            name: stack.enter_context(EngineProcess(name, arguments, config, folder / f"{number}.log"))
            for number, (name, config) in enumerate(ENGINES.items())
        }


def straight_prompts(plain: EngineProcess, tokens: int) -> list[list[int]]:
    """The token ids of the prompts whose plain continuation is no loop."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    asked = [tokenizer(row["text"])["input_ids"] for row in bundled_prompts()]
    answers = plain.turn(asked, tokens, MOST_REQUESTS).tokens
    return [ids for ids, answer in zip(asked, answers, strict=True) if not is_loop(answer)]


def measure(up: dict[str, EngineProcess], prompts: Sequence[list[int]], load: int, rounds: int, tokens: int) -> Any:
    """The turns of every engine at one load."""
    asked = list(islice(cycle(prompts), max(len(prompts), WAVES * load)))
    for engine in up.values():
        engine.turn(asked, tokens, load)

    def ask(engine: EngineProcess, _: int) -> Turn:
        return engine.turn(asked, tokens, load)

    told = track(range(rounds), f"{load} at a time", console=Console(stderr=True))
    return in_turns(told, {name: partial(ask, engine) for name, engine in up.items()})


def rows(load: int, turns: dict[str, list[Turn]]) -> list[dict[str, Any]]:
    """One for each engine."""
    return [
        {
            "name": name,
            "requests": load,
            "prompts": len(own[0].answers),
            "identical": same_tokens(own, turns[PLAIN]),
            "to_eagle3": speedups(own, turns[BASELINE])._asdict(),
            "to_plain": speedups(own, turns[PLAIN])._asdict(),
            "tokens_per_second": spread([turn.output_throughput for turn in own])._asdict(),
            "tokens_per_second_by_round": [round(turn.output_throughput, 1) for turn in own],
            **drafted(sum((turn.speculation for turn in own), start=Speculation())),
        }
        for name, own in turns.items()
    ]


def drafted(told: Speculation) -> dict[str, float]:
    if not told.verifications:
        return {"tokens_per_verification": 1.0, "drafted_per_verification": 0.0}
    return {
        "tokens_per_verification": round(told.acceptance_length, 3),
        "drafted_per_verification": round(told.per_verification(told.nodes), 2),
    }


def table(found: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="GRIFFIN's chains beside vLLM's EAGLE-3")
    for column in ("engine", "requests", "identical", "x eagle3", "x plain", "drafted"):
        shown.add_column(column)
    for row in found:
        ratios = (
            "{median:.2f} ({lowest:.2f} to {highest:.2f})".format(**row[key]) for key in ("to_eagle3", "to_plain")
        )
        shown.add_row(
            row["name"], str(row["requests"]), str(row["identical"]), *ratios, str(row["drafted_per_verification"])
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for beside_eagle3.json")
    parser.add_argument("--requests", action="append", type=int, help=f"loads {LOADS}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    args = parser.parse_args()
    found: list[dict[str, Any]] = []
    with engines() as up:
        prompts = straight_prompts(up[PLAIN], args.tokens)
        for load in args.requests or LOADS:
            found += rows(load, measure(up, prompts, load, args.rounds, args.tokens))
    Console().print(table(found))
    if wrong := [row["name"] for row in found if not row["identical"]]:
        sys.exit(f"{', '.join(wrong)}: other tokens than plain decoding")
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "beside_eagle3.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
