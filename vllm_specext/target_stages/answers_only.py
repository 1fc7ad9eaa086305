"""The target's answers without its states, for a method that keeps none."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_specext.preparation.feature_folder import Capturing
from vllm_specext.training.data.answers import Answers, Turn
from vllm_specext.training.data.row import Row


@dataclass(frozen=True)
class AnswersOnly:
    """A ``Capturing`` whose rows have no shards: the states are let go when their group ends."""

    capturing: Capturing

    def exchange(self, turns: Sequence[Turn]) -> Answers:
        return self.capturing.exchange(turns)

    def abandon(self) -> None:
        self.capturing.abandon()

    def write(self, path: Path, rows: Sequence[Row], over: Collection[str], target: str, source: str) -> list[str]:
        return self.capturing.write(path, (), over, target, source)
