"""The target's answers without its states, for a method that keeps none."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_specext.preparation.feature_folder import Capturing
from vllm_specext.training.data.answers import Answer, Turn
from vllm_specext.training.data.row import Row


@dataclass(frozen=True)
class AnswersOnly:
    """A ``Capturing`` whose rows have no shards: the states are let go when their group ends."""

    capturing: Capturing

    def answer(self, turns: Sequence[Turn]) -> Sequence[Answer | None]:
        return self.capturing.answer(turns)

    def write(self, path: Path, rows: Sequence[Row], target: str, source: str) -> list[str]:
        return self.capturing.write(path, (), target, source)
