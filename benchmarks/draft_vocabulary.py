"""Tokens per verification of GRIFFIN and MoA by the number of tokens that the drafter scores.

    python -m benchmarks.draft_vocabulary --output benchmarks/results/cpu

The tokens are the most frequent ones of the text that the bundled models were trained on. The prompts are the
demonstration's, which are held out, one at a time, greedy and in float32; those whose plain continuation is a loop do
not count. Nothing is timed, so that a busy machine gives the same figures. Every configuration must give the tokens of
plain decoding, else nothing is written. Writes ``draft_vocabulary.json``.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.tokens_per_verification import answers, check_same, load_engine, loops, summary
from vllm_specext.bench.configurations import Configuration
from vllm_specext.bench.prompt_files import load
from vllm_specext.bench.prompts import Prompt, Rendering
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, GRIFFIN_TREE, MAX_TOKENS, MOA_TREE, TARGET
from vllm_specext.measure.corpus import documents
from vllm_specext.methods.foreign_vocab.tokenizers.tokenizer_files import read_files
from vllm_specext.methods.token_counts import count, coverage, ordered, write

DRAFTERS = {"griffin-chain": GRIFFIN_CHAIN, "griffin-tree": GRIFFIN_TREE, "moa-tree": MOA_TREE}
SIZES = (None, 1024, 512, 256, 128)
"""The first one is the target's whole vocabulary."""
COUNTED = 2000
"""Documents of the training text that are counted, spread over all of it."""


def counted_text() -> Iterator[str]:
    texts = [document.text for document in documents() if not document.held_out]
    return iter(texts[:: max(1, len(texts) // COUNTED)])


def write_ids(path: Path) -> tuple[int, list[float]]:
    """Write the target's most frequent tokens; the size of its vocabulary, and the share of the text's tokens that the
    first 0, 1, 2, ... of them are."""
    vocabulary = read_files(str(TARGET), "the target").vocabulary
    counts = count(counted_text(), vocabulary.encode_batch)
    ids = ordered(counts, {*vocabulary.markers.values(), *vocabulary.ends})
    write(path, TARGET.name, len(vocabulary.token_bytes), ids, counts)
    return len(vocabulary.token_bytes), coverage(ids, counts)


def measure(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    rendering = Rendering(str(TARGET))
    ids = [rendering.ids(prompt) for prompt in prompts]
    rows = []
    with tempfile.TemporaryDirectory(prefix="vllm-specext-benchmark-") as folder:
        file = Path(folder) / "ids.json"
        vocab_size, shares = write_ids(file)
        with load_engine(Configuration("plain"), Path(folder)) as engine:
            plain = answers(engine, ids, None, "plain")
        for drafter, keys in DRAFTERS.items():
            for size in SIZES:
                small = {} if size is None else {"draft_vocab_file": str(file), "draft_vocab_size": size}
                name = f"{drafter}, {size or vocab_size} tokens"
                with load_engine(Configuration(name, keys | small), Path(folder)) as engine:
                    given = answers(engine, ids, None, name)
                check_same(name, given, plain)
                rows.append(
                    {
                        "drafter": drafter,
                        "draft_vocab_size": size or vocab_size,
                        "of_the_vocabulary": round((size or vocab_size) / vocab_size, 4),
                        "of_the_counted_tokens": 1.0 if size is None else round(shares[size], 4),
                        **summary(given, plain, keys.get("tree_depth", keys["num_speculative_tokens"])),
                    }
                )
        print(f"{sum(map(loops, plain))} of {len(plain)} prompts end in a loop and do not count")
    return rows


def table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="tokens per verification by the tokens that the drafter scores")
    for column in ("drafter", "tokens scored", "of the text's", "per verification", "95%"):
        shown.add_column(column, justify="left" if column == "drafter" else "right", no_wrap=True)
    for row in rows:
        shown.add_row(
            row["drafter"],
            str(row["draft_vocab_size"]),
            f"{row['of_the_counted_tokens']:.1%}",
            f"{row['tokens_per_verification']:.2f}",
            f"{row['low']:.2f}-{row['high']:.2f}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for draft_vocabulary.json")
    parser.add_argument("--prompts-per-task", type=int, default=sys.maxsize, help="fewer prompts, of code and of prose")
    args = parser.parse_args()
    prompts = load([], args.prompts_per_task)
    try:
        rows = measure(prompts)
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
    Console().print(table(rows))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        about = {"max_tokens": MAX_TOKENS, "prompts": len(prompts), "identical": True}
        path = args.output / "draft_vocabulary.json"
        path.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
