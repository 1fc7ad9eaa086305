"""Predicted answers of which three lines are wrong: tokens per pass of the target, and what a useless prediction costs.

    python -m benchmarks.given_edits --output benchmarks/results/cpu

The bundled target continues text and cannot follow an instruction to edit. So what an edited file would be is its own
greedy answer to the beginning of a file of Python's standard library, and the prediction is this answer with a word
changed in each of three lines: as much of it is wrong as of a file that is predicted to stay as it is and gets three
lines changed. One engine answers every prompt without a prediction, with this one, with random tokens, and with the
answer to another file, in random order. A second engine has GRIFFIN's trees, and reads predictions before it drafts
one. Speed is the processor time of the engine's thread. Writes ``given_edits.json``.
"""

import argparse
import json
import random
import re
import statistics
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.own_process import in_own_process
from vllm_specext.measure.arguments import MOST_REQUESTS, compared_arguments, served
from vllm_specext.measure.bundled import MODELS
from vllm_specext.measure.engine import Engine
from vllm_specext.measure.machine import machine

FILES, LINES = 50, 3
PROMPT, ANSWER = 256, 320
"""Tokens."""
CHAIN = 32
KINDS = ("edited", "random tokens", "another file's answer")
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "given": {"method": "given", "num_speculative_tokens": CHAIN, "adaptive_drafts": False},
    "griffin": {
        "method": "griffin",
        "model": str(MODELS / "griffin"),
        "num_speculative_tokens": CHAIN,
        "tree_top_k": 4,
        "prediction_tokens": CHAIN,
        "adaptive_drafts": False,
        "num_speculative_tokens_per_batch_size": [[1, MOST_REQUESTS, CHAIN]],
    },
}
"""By method: predictions alone, and before draft trees of as many tokens."""
WORD = re.compile(r"[A-Za-z_]\w{2,}")


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of the standard library's files, by name."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        if not path.name.startswith("_"):
            yield path.name, text


def with_changed_lines(text: str, drawn: random.Random) -> str | None:
    """``text`` with another word in three of its lines; ``None`` where it has too few lines with a word."""
    lines = text.splitlines(keepends=True)
    fit = [place for place, line in enumerate(lines) if WORD.search(line)]
    if len(fit) < LINES:
        return None
    for place in drawn.sample(fit, LINES):
        found = drawn.choice(list(WORD.finditer(lines[place])))
        lines[place] = f"{lines[place][: found.start()]}renamed_here{lines[place][found.end() :]}"
    return "".join(lines)


class Asker:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.asked = engine, 0

    def __call__(self, prompt: Sequence[int], prediction: Sequence[int] | None = None) -> dict[str, Any]:
        """A greedy answer: its tokens, the passes of the target that it took after the prompt's, and seconds."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input

        extra = None if prediction is None else {"prediction_token_ids": list(prediction)}
        params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, detokenize=False, extra_args=extra)
        name, self.asked = str(self.asked), self.asked + 1
        engine, steps = self.engine.engine, 0
        tokens: list[int] = []
        before = self.engine.counted()
        start = time.thread_time()
        engine.add_request(name, tokens_input(list(prompt)), params)
        while not tokens:
            for output in engine.step():
                steps += 1
                if output.finished:
                    tokens = list(output.outputs[0].token_ids)
        seconds = time.thread_time() - start
        counted = self.engine.counted() - before
        return {
            "tokens": tokens,
            "passes": steps - 1,
            "seconds": seconds,
            "verifications": counted.verifications,
            "accepted": sum(counted.accepted),
        }


def measure(files: int, method: str) -> dict[str, Any]:
    """What was seen of so many files, one row each, and the figures over all of them."""
    engine = Engine([f"--model={served(None)}", *compared_arguments(None, [])], CONFIGURATIONS[method])
    ask, encode, drawn = Asker(engine), engine.tokenizer, random.Random(0)
    vocabulary = engine.engine.vllm_config.model_config.get_vocab_size()
    chosen: list[tuple[str, list[int], list[int], list[int]]] = []
    for name, text in sources():
        prompt = encode(text)["input_ids"][:PROMPT]
        if len(chosen) == files or len(prompt) < PROMPT:
            continue
        answer = ask(prompt)["tokens"]
        changed = with_changed_lines(encode.decode(answer), drawn)
        if changed is not None:
            chosen.append((name, prompt, answer, encode(changed, add_special_tokens=False)["input_ids"]))
    rows = []
    for place, (name, prompt, answer, edited) in enumerate(chosen):
        other = chosen[(place + 1) % len(chosen)][2]
        predictions: dict[str, list[int] | None] = {
            "none": None,
            "edited": edited,
            "random tokens": [drawn.randrange(vocabulary) for _ in range(ANSWER)],
            "another file's answer": other,
        }
        row: dict[str, Any] = {"file": name}
        # In any order: an answer that takes many passes leaves the processor's caches as few passes do not.
        for kind in drawn.sample(list(predictions), len(predictions)):
            seen = ask(prompt, predictions[kind])
            row[kind] = seen | {"identical": seen.pop("tokens") == answer}
        rows.append(row)
    kinds = KINDS if method == "given" else ("none", *KINDS)
    return {"facts": engine.facts(), "figures": [figures(kind, rows) for kind in kinds], "rows": rows}


def figures(kind: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    own = [row[kind] for row in rows]
    passes, verifications, accepted = (sum(one[key] for one in own) for key in ("passes", "verifications", "accepted"))
    speeds = [row["none"]["seconds"] / row[kind]["seconds"] for row in rows]
    return {
        "prediction": kind,
        "files": len(rows),
        "tokens_per_pass": round(len(rows) * (ANSWER - 1) / passes, 3),
        "tokens_per_verification": round(1 + accepted / verifications, 3) if verifications else None,
        "passes_with_drafts": round(verifications / passes, 3),
        "speed": round(statistics.median(speeds), 3),
        "speeds": [round(share, 3) for share in statistics.quantiles(speeds, n=4)],
        "speed_of_all": round(sum(row["none"]["seconds"] for row in rows) / sum(one["seconds"] for one in own), 3),
        "identical": all(one["identical"] for one in own) and all(row["none"]["identical"] for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for given_edits.json")
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*json.loads(args.one))))
        return
    result: dict[str, Any] = {"machine": machine()}
    for method in CONFIGURATIONS:
        result[method] = in_own_process("benchmarks.given_edits", method, [args.files, method])
        for one in result[method]["figures"]:
            print(method, json.dumps(one))
    if args.output:
        (args.output / "given_edits.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
