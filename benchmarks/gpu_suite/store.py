"""Results on disk: all parts in one ``suite.json`` and all rows in one ``suite.csv``, so that a machine that hands back
few files hands back everything. Both are replaced as a whole after every part; a kill leaves the last complete state.
"""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

DONE = "done"


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "suite.json"
        self.parts: dict[str, dict[str, Any]] = json.loads(path.read_text())["parts"] if path.exists() else {}

    def is_done(self, name: str, key: dict[str, Any]) -> bool:
        part = self.parts.get(name)
        return part is not None and part["status"] == DONE and part["key"] == key

    def keep(self, name: str, part: dict[str, Any], order: list[str]) -> None:
        """``part`` in place of what there was; parts are written in ``order``. A part that failed is kept too, unless
        that would replace one that is done: figures from older sources are better than none, and say what they are."""
        if part["status"] != DONE and not part["rows"] and self.parts.get(name, {}).get("status") == DONE:
            return
        self.parts[name] = part
        known = [each for each in order if each in self.parts]
        self.parts = {each: self.parts[each] for each in [*known, *sorted(self.parts.keys() - set(known))]}
        self.folder.mkdir(parents=True, exist_ok=True)
        self._replace("suite.json", lambda file: file.write(json.dumps({"parts": self.parts}, indent=1) + "\n"))
        self._replace("suite.csv", self._write_csv)

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.parts.get(name, {}).get("rows", [])

    def _write_csv(self, file: TextIO) -> None:
        rows = [{"part": name, **row} for name, part in self.parts.items() for row in part["rows"]]
        columns = list(dict.fromkeys(key for row in rows for key, value in row.items() if not isinstance(value, list)))
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)

    def _replace(self, name: str, write: Callable[[TextIO], Any]) -> None:
        new = self.folder / f".{name}.new"
        with new.open("w", newline="") as file:
            write(file)
        os.replace(new, self.folder / name)
