"""``vllm-specext pair TARGET DRAFTER``: what two tokenizers have in common, and which method drafts best across them.

The command reads only tokenizers and configurations: no weights, and no torch if there is a ``tokenizer.json``.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich
import typer
from rich.markup import escape
from rich.table import Table

from vllm_specext.cli.lines import show
from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm_specext.methods.foreign_vocab.pair import Advice, Comparison
    from vllm_specext.methods.foreign_vocab.tokenizers.tokenizer_files import TokenizerFiles


def pair(
    target: Annotated[str, typer.Argument(help="The model that is served: a folder or a hub id.", show_default=False)],
    drafter: Annotated[str, typer.Argument(help="The drafter, with any tokenizer.", show_default=False)],
    text: Annotated[Path | None, typer.Option(help="Text like that served, in place of the bundled sample.")] = None,
) -> None:
    """Compare a target's and a drafter's tokenizers, and say which of slem, tli and slrs to use."""
    from vllm_specext.methods.foreign_vocab.pair import advise, compare
    from vllm_specext.methods.foreign_vocab.tokenizers.tokenizer_files import read_files

    sample = bundled_text() if text is None else read_text(text)
    both = read_files(target, "TARGET"), read_files(drafter, "DRAFTER")
    found = compare(both[0].vocabulary, both[1].vocabulary, sample)
    advice = advise(both[1].vocabulary, found)
    rich.print(tokenizers_table(*both, found))
    rich.print(methods_table(advice))
    if found.same:
        show("The vocabularies are the same: take method draft-model-tree, or vLLM's own draft_model.")
        return
    best = advice[0]
    config = {"method": best.method, "model": drafter, "num_speculative_tokens": best.num_speculative_tokens}
    typer.echo(f"--speculative-config '{json.dumps(config)}'")  # in one line, to be copied


def bundled_text() -> str:
    """A sample of Python and English: the demonstration's prompts that are not written as a chat."""
    from vllm_specext.measure.bundled import bundled_prompts

    return "\n".join(prompt["text"] for prompt in bundled_prompts() if not prompt["text"].startswith("<|"))


def read_text(path: Path, option: str = "--text") -> str:
    try:
        found = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option} is {str(path)!r}, which cannot be read ({type(error).__name__}).") from None
    if not found:
        raise ConfigurationError(f"{option} is {str(path)!r}, which is empty.")
    return found


def tokenizers_table(target: "TokenizerFiles", drafter: "TokenizerFiles", found: "Comparison") -> Table:
    table = Table("", "target", "drafter")

    def add(name: str, *cells: str) -> None:
        table.add_row(name, *map(escape, cells))

    both = target.vocabulary, drafter.vocabulary
    add("tokenizer", target.family, drafter.family)
    add("vocabulary", *(str(len(vocabulary.token_bytes)) for vocabulary in both))
    add("texts survive", *("yes" if vocabulary.exact else "no" for vocabulary in both))
    add("bytes per token", f"{found.target_bytes:.2f}", f"{found.drafter_bytes:.2f}")
    add(f"{found.shared} shared tokens are", f"{found.of_target:.1%}", f"{found.of_drafter:.1%}")
    add("of the text's tokens", f"{found.coverage:.1%}", "")
    return table


def methods_table(advice: "list[Advice]") -> Table:
    table = Table("method", "num_speculative_tokens", "because", caption="best first", caption_justify="left")
    for one in advice:
        table.add_row(one.method, str(one.num_speculative_tokens or "do not use"), escape(one.why))
    return table
