"""Choose the demonstration's prompts from documents that the bundled models have not seen, and write ``prompts.json``.

    python -m vllm_specext.demo.make_prompts

A prompt is the beginning of a document (prose) or starts at a function or class (code), and ends at the end of a line.
A source file gives a second prompt only when there are too few files.
"""

import argparse
import hashlib
import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from vllm_specext.measure.corpus import Document, Kind, documents

HERE = Path(__file__).parent
PER_KIND = 12
SHORTEST, LONGEST = 60, 150
SEEN_AS_SIBLINGS = "stdlib/encodings/"
"""These modules are one template many times over, so a held-out one is not new to the models."""
DEFINITION = re.compile(r"(?m)^(?:class|def|async def) ")


def beginnings(document: Document) -> list[str]:
    """The document from each of its top-level definitions (code), or from its start (prose)."""
    if document.kind == "prose":
        return [document.text]
    return [document.text[match.start() :] for match in DEFINITION.finditer(document.text)]


def cut(text: str, tokenizer: PreTrainedTokenizerBase, limit: int) -> str | None:
    """The first whole lines that ``limit`` tokens hold; ``None`` where these are fewer than ``SHORTEST`` tokens."""
    prompt = None
    lines = text.splitlines()
    for count in range(1, len(lines) + 1):
        candidate = "\n".join(lines[:count]).rstrip()
        tokens = len(tokenizer(candidate)["input_ids"])
        if tokens > limit:
            break
        if tokens >= SHORTEST:
            prompt = candidate
    return prompt


def candidates(kind: Kind, held_out: list[Document]) -> Iterator[tuple[str, str]]:
    """``(source, text)``: first one of every source, then a second one of each, and so on; not by alphabet."""
    by_source: dict[str, list[str]] = {}
    for document in held_out:
        if document.kind == kind and not document.source.startswith(SEEN_AS_SIBLINGS):
            by_source.setdefault(document.source, []).extend(beginnings(document))
    sources = sorted(by_source, key=lambda source: hashlib.sha256(source.encode()).digest())
    for turn in zip_longest(*(by_source[source] for source in sources)):
        yield from ((source, text) for source, text in zip(sources, turn, strict=True) if text is not None)


def prompts(kind: Kind, held_out: list[Document], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, str]]:
    """``PER_KIND`` prompts, from the shortest allowed length to the longest."""
    chosen: list[dict[str, str]] = []
    for source, beginning in candidates(kind, held_out):
        limit = SHORTEST + 15 + (LONGEST - SHORTEST - 15) * len(chosen) // (PER_KIND - 1)
        if (text := cut(beginning, tokenizer, limit)) is not None:
            chosen.append({"kind": kind, "source": source, "text": text})
        if len(chosen) == PER_KIND:
            return chosen
    raise SystemExit(f"the held-out documents give {len(chosen)} prompts of kind {kind}, {PER_KIND} are needed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, default=HERE / "models" / "target")
    parser.add_argument("--out", type=Path, default=HERE / "prompts.json")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    held_out = [document for document in documents() if document.held_out]
    rows = [row for kind in ("code", "prose") for row in prompts(kind, held_out, tokenizer)]
    args.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for row in rows:
        print(f"{len(tokenizer(row['text'])['input_ids']):4d} tokens  {row['kind']:5}  {row['source']}")


if __name__ == "__main__":
    main()
