"""What the masks of a draft tree take the scheduler, beside those of a chain.

    python -m benchmarks.grammar_masks --output benchmarks/results/cpu

With xgrammar, one request and a vocabulary of 151,936 tokens, as many as Qwen's, of letters and signs drawn at random,
because no real one of that size is at hand. The request writes a JSON object. At each of its tokens a draft is
verified: the next tokens of the text, and at every level of a tree others beside them, drawn at random. Thread CPU
time, the median of ten rounds. Writes ``grammar_masks.json``.
"""

import argparse
import json
import random
import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xgrammar
from rich.console import Console
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from benchmarks.held_out_rows import table
from vllm_specext.engine.scheduler.grammar_walk import DraftedTree, GrammarWalk, Start

VOCABULARY, ROUNDS = 151_936, 10
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "year": {"type": "integer"},
        "authors": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title", "year", "authors"],
}
TEXT = json.dumps({"title": "On the Economy of Machinery", "year": 1832, "authors": ["Charles Babbage", "and others"]})
SHAPES = {"chain of 6": (6, 1), "tree of 24": (6, 4), "tree of 59": (6, 10)}
"""Levels, and nodes of each."""


def vocabulary() -> list[str]:
    drawn = random.Random(0)
    signs = {a + b for a in '{}[]":, ' for b in '{}[]":, \n'} | {chr(code) for code in range(32, 127)}
    while len(signs) < VOCABULARY - 1:
        word = "".join(drawn.choices(string.ascii_letters + string.digits, k=drawn.randint(1, 8)))
        signs.add(drawn.choice(("", " ")) + word + drawn.choice(("", "", "", "", '"', ",", ":")))
    return [*sorted(signs), "<end>"]


def tokens_of(text: str, ids: dict[str, int]) -> list[int]:
    """The longest token at every place."""
    found, place = [], 0
    while place < len(text):
        word = next(text[place : place + size] for size in range(10, 0, -1) if text[place : place + size] in ids)
        found.append(ids[word])
        place += len(word)
    return found


def tree(following: list[int], levels: int, width: int, nodes: int, drawn: random.Random) -> DraftedTree:
    """Each of the ``following`` tokens is the first of its level, after the first of the level before."""
    tokens: list[int] = []
    parents: list[int] = []
    parent = 0
    for token in following[:levels]:
        first = len(tokens) + 1
        for of_level in (token, *(drawn.randrange(VOCABULARY) for _ in range(width - 1))):
            if len(tokens) < nodes:
                tokens.append(of_level)
                parents.append(parent)
        parent = first
    return DraftedTree(tokens, parents)


def measure() -> Iterator[dict[str, Any]]:
    words = vocabulary()
    info = xgrammar.TokenizerInfo(
        words, vocab_type=xgrammar.VocabType.RAW, vocab_size=VOCABULARY, stop_token_ids=[VOCABULARY - 1]
    )
    compiled = xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(SCHEMA))
    text = tokens_of(TEXT, {word: number for number, word in enumerate(words)})
    for name, (levels, width) in SHAPES.items():
        times: list[float] = []
        reached: list[int] = []
        nodes = int(name.split()[-1])
        for number in range(ROUNDS):
            drawn = random.Random(number)
            grammar = XgrammarGrammar(VOCABULARY, xgrammar.GrammarMatcher(compiled), compiled)
            masks = xgrammar.allocate_token_bitmask(1 + nodes, VOCABULARY)
            for place in range(len(text) - levels):
                drafted = tree(text[place:], levels, width, nodes, drawn)
                masks.fill_(0)
                grammar.fill_bitmask(masks, 0)
                begin = time.thread_time()
                children = drafted.children()
                walk = GrammarWalk("one", grammar, drafted, masks.numpy())
                walk.fill(children, [Start(0, 0)] * len(children))
                times.append(time.thread_time() - begin)
                reached.append(int(np.count_nonzero(masks.any(dim=1))) - 1)
                assert grammar.accept_tokens("one", [text[place]])
        per_place = np.array(times).reshape(ROUNDS, -1)
        yield {
            "drafts": name,
            "nodes_that_may_come": round(float(np.mean(reached)), 1),
            "median_us": round(1e6 * float(np.median(per_place)), 1),
            "most_us": round(1e6 * float(np.median(per_place, axis=0).max()), 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for grammar_masks.json")
    output = parser.parse_args().output
    rows = list(measure())
    Console().print(table("masks of a draft", rows))
    if output:
        output.mkdir(parents=True, exist_ok=True)
        (output / "grammar_masks.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
