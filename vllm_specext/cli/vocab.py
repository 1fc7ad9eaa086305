"""``vllm-specext vocab --target MODEL --text FILE``: a target's most frequent tokens, for a drafter to draft from.

The command reads the target's tokenizer and configuration: no weights, and no torch if there is a ``tokenizer.json``.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from vllm_specext.cli.lines import show
from vllm_specext.cli.outputs import check_file, refusal
from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm_specext.methods.token_counts import Encode

FEWEST = 256
"""The first of the sizes that are shown; the others are twice as many each."""


def vocab(
    target: Annotated[str, typer.Option(help="The model that is served: a folder or a hub id.", show_default=False)],
    text: Annotated[
        list[Path],
        typer.Option(
            help="Text like the answers that are served, in UTF-8; may be repeated. Of a .jsonl file what stands under "
            "text, content and value counts.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Write the file for the key draft_vocab_file.", show_default=False)
    ] = None,
) -> None:
    """Count a target's tokens in texts, and say how many of them a drafter needs to score."""
    from vllm_specext.methods.foreign_vocab.tokenizers.tokenizer_files import read_files
    from vllm_specext.methods.token_counts import coverage, ordered, write

    if output is not None:
        check_file("--output", output)
    for path in text:
        if not path.is_file():
            raise ConfigurationError(f"--text is {str(path)!r}, which is no file.")
    vocabulary = read_files(target, "--target").vocabulary
    counts = counted(text, vocabulary.encode_batch)
    if not counts:
        raise ConfigurationError(f"--text is {str(text[0])!r}, which has no text to count.")
    ids = ordered(counts, {*vocabulary.markers.values(), *vocabulary.ends})
    vocab_size = len(vocabulary.token_bytes)
    rich.print(coverage_table(coverage(ids, counts), vocab_size, counts))
    if output is not None:
        try:
            write(output, target, vocab_size, ids, counts)
        except OSError as error:
            raise refusal("--output", output, error) from None
        show(f"{len(ids)} ids written to {output}")


def counted(paths: Sequence[Path], encode_batch: "Encode") -> Counter[int]:
    """How often each id stands in the files, with a bar that shows how much has been read."""
    from vllm_specext.methods.token_counts import count, pieces

    found: Counter[int] = Counter()
    with Progress(console=Console(stderr=True)) as progress:
        for path in paths:
            try:
                with progress.open(path, "rb", description=escape(path.name)) as file:
                    found += count(pieces(file, path), encode_batch)
            except OSError as error:
                raise ConfigurationError(
                    f"--text is {str(path)!r}, which cannot be read ({type(error).__name__})."
                ) from None
    return found


def coverage_table(shares: Sequence[float], vocab_size: int, counts: Counter[int]) -> Table:
    """``shares`` of the tokens in the texts that the first 0, 1, 2, ... ids are."""
    seen = f"{counts.total()} tokens counted, {len(counts)} of the target's {vocab_size} among them"
    table = Table(caption=f"{seen}; special tokens come first", caption_justify="left")
    for column in ("draft_vocab_size", "of the vocabulary", "of the text's tokens"):
        table.add_column(column, justify="right")
    for size in sizes(len(shares) - 1):
        table.add_row(str(size), f"{size / vocab_size:.1%}", f"{shares[size]:.2%}")
    return table


def sizes(most: int) -> list[int]:
    """Powers of two below ``most``, and ``most``."""
    found = [FEWEST]
    while 2 * found[-1] < most:
        found.append(2 * found[-1])
    return [*(size for size in found if size < most), most]
