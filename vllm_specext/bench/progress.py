"""A bar on a terminal, a line for every tenth and every stage elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """How many of the run's turns are done."""

    def __init__(self, console: Console, bar: Bar) -> None:
        self.console = console
        self.bar = bar
        self.task = bar.add_task("starting", total=None)
        self.stage = ""

    def begin(self, total: int) -> None:
        self.bar.update(self.task, total=total)

    def doing(self, stage: str) -> None:
        self.stage = stage
        self.bar.update(self.task, description=escape(stage))
        if not self.console.is_terminal:
            self._line()

    def advance(self) -> None:
        self.bar.advance(self.task)
        done, total = self.bar.tasks[0].completed, self.bar.tasks[0].total
        if not self.console.is_terminal and total and int(10 * done / total) > int(10 * (done - 1) / total):
            self._line()

    def _line(self) -> None:
        task = self.bar.tasks[0]
        of = f"{task.completed:.0f} of {task.total:.0f} turns" if task.total else "starting"
        self.console.print(f"{self.stage}  ({of}, {task.elapsed or 0:.0f} s)", markup=False, highlight=False)


@contextmanager
def shown(console: Console) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Progress(console, bar)
