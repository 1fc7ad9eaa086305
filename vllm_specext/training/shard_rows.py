"""The rows of shards in the order of training: random, and yet read in long pieces.

Each epoch has the shards in an order of its own. The rows of each few of them, a window, are mixed. The order follows
from the seed and the epoch alone, so that a number of rows is all that a training needs to go on from.
"""

from collections import OrderedDict
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.mixed_order import WINDOW, mixed_order
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.shards import SUFFIX, Shard, read_row, read_shard, readable


def find_shards(folder: Path, target: str | None = None) -> list[Shard]:
    """All shards in ``folder``, by name; ``ConfigurationError`` for one that is damaged, of another ``target`` or
    unlike the others, and where there is none."""
    found = [read_shard(path, target) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    if not found:
        raise ConfigurationError(f"{folder} has no shards of features (*{SUFFIX}); expected 1 or more.")
    for shard in found:
        for name in ("target", "width", "aux_width"):
            own, first = getattr(shard, name), getattr(found[0], name)
            if own != first:
                raise ConfigurationError(
                    f"{shard.path} has {name} {own!r}, but {found[0].path.name} beside it has {first!r}; expected the "
                    "same in all shards of a folder."
                )
    return found


class ShardRows:
    """A ``RowSource`` of the rows of ``shards``, or of those whose names are in ``keys``.

    Raises ``ConfigurationError`` where there are none.
    """

    def __init__(
        self, shards: Sequence[Shard], seed: int, keys: Container[str] | None = None, window: int = WINDOW
    ) -> None:
        self.shards, self.seed, self.window = list(shards), seed, window
        self._places: list[tuple[int, int]] = []
        """Shard and row in it, of each row."""
        self._numbers: list[list[int]] = []
        """The numbers of each shard's rows."""
        for number, shard in enumerate(self.shards):
            inside = [(number, row) for row, key in enumerate(shard.keys) if keys is None or key in keys]
            self._numbers.append(list(range(len(self._places), len(self._places) + len(inside))))
            self._places += inside
        if not self._places:
            raise ConfigurationError(
                f"of {sum(map(len, self.shards))} rows in {len(self.shards)} shards none is asked for; expected 1 or "
                "more."
            )
        self._files: OrderedDict[int, Any] = OrderedDict()

    @property
    def lengths(self) -> list[int]:
        """Of every row, in tokens."""
        starts = [shard.row_starts for shard in self.shards]
        return [starts[shard][row + 1] - starts[shard][row] for shard, row in self._places]

    def order(self, epoch: int) -> list[int]:
        """The numbers of all rows, each once, as they come in this epoch."""
        return mixed_order(self._numbers, self.seed, epoch, self.window)

    def read(self, rows: Sequence[int], epoch: int = 0) -> list[FeatureRow]:
        """These rows, in this order, with the types that they have in the shards."""
        places = [self._places[row] for row in rows]
        return [read_row(self.shards[shard], self._file(shard), row) for shard, row in places]

    def _file(self, shard: int) -> Any:
        """The open file of a shard. Two windows' are kept open."""
        if shard not in self._files:
            with readable(self.shards[shard].path):
                self._files[shard] = safe_open(self.shards[shard].path, framework="pt")
        self._files.move_to_end(shard)
        while len(self._files) > 2 * self.window:
            self._files.popitem(last=False)
        return self._files[shard]
