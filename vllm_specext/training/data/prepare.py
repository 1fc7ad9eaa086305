"""From ``--data`` to prepared rows: reading, answering, hygiene, the split, and the files."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.answering import answered_rows
from vllm_specext.training.data.answers import Answerer
from vllm_specext.training.data.conversation import Conversation, Found
from vllm_specext.training.data.folder import write_data
from vllm_specext.training.data.groups import Group, answered_groups
from vllm_specext.training.data.hygiene import Hygiene
from vllm_specext.training.data.progress import Progress
from vllm_specext.training.data.readable import Readable
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.row import Row
from vllm_specext.training.data.settings import DataSettings
from vllm_specext.training.data.sources import rows_of_all
from vllm_specext.training.data.split import split
from vllm_specext.training.data.stats import statistics
from vllm_specext.training.data.tally import Tally
from vllm_specext.training.data.template import ChatTemplate


def prepare(
    settings: DataSettings,
    template: ChatTemplate,
    folder: Path,
    answerer: Answerer | None = None,
    kept: Callable[[Sequence[Row], Collection[str]], None] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write prepared rows and their figures into ``folder``, and return the figures, which are ``stats.json``.

    ``answerer`` is needed unless all answers are given. ``kept``, if given, is called after each group of
    conversations with those of its rows that are kept, none perhaps, and the keys of all that the target has answered,
    so that what was captured of others can be let go. ``progress`` is told of each group.
    All rows are in memory at once: five bytes for each token.

    Raises ``ConfigurationError`` if data cannot be read, or if nothing is left of them.
    """
    if answerer is None and settings.answers != "given":
        raise ConfigurationError(
            f"the data setting answers is {settings.answers!r}, but there is no target to ask; expected 'given'."
        )
    tally, readable = Tally(), Readable(template.vocab_size)
    rows: list[Row] = []
    with (progress or Progress(settings.samples, lambda line: None)).shown() as shown:
        for group, new in _groups(settings, template, answerer, tally, readable):
            if kept is not None:
                kept(new, group.by_target)
            rows += new
            shown.note(len(group.found), new)
    if not rows:
        raise ConfigurationError(_nothing_left(tally, readable.first))
    train, valid = split(rows)
    beside = {"settings": settings.model_dump(mode="json"), "template": template.record()}
    stats = statistics(train, valid, vars(tally), beside)
    write_data(folder, train, valid, stats)
    return stats


def _groups(
    settings: DataSettings, template: ChatTemplate, answerer: Answerer | None, tally: Tally, readable: Readable
) -> Iterator[tuple[Group, list[Row]]]:
    """What was read, and what is kept of it."""
    hygiene = Hygiene(settings.max_length, tally)
    loss_tokens = 0
    numbered = islice(rows_of_all(settings.data), settings.samples)
    without = _without_duplicates(readable.rows(numbered))
    for group in answered_groups(without, settings, template, answerer):
        new = hygiene.cleaned(answered_rows(group, template, settings.max_length, tally))
        yield group, new
        loss_tokens += sum(row.loss_tokens for row in new)
        if settings.tokens is not None and loss_tokens >= settings.tokens:
            if answerer is not None:
                answerer.abandon()
            return


def _without_duplicates(found: Iterator[Found]) -> Iterator[Found]:
    """A conversation that was there before becomes the reason: nobody has to answer it, and names stay unique."""
    seen: set[str] = set()
    for one in found:
        if isinstance(one, Conversation):
            if one.key in seen:
                yield Reason.DUPLICATE
                continue
            seen.add(one.key)
        yield one


def _nothing_left(tally: Tally, unreadable: str | None) -> str:
    reasons = ", ".join(f"{reason} {count}" for reason, count in tally.dropped.most_common())
    found = f"of {tally.read.total()} rows in --data none is left to train on ({reasons or 'there are none'})"
    return f"{found}." if unreadable is None else f"{found}; the first unreadable one: {unreadable}"
