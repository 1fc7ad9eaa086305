"""Package indexes as folders, with wheels that hold nothing but their metadata; pip reads them by file addresses."""

import zipfile
from collections.abc import Sequence
from pathlib import Path


def publish(index: Path, name: str, version: str, needs: Sequence[str] = (), extras: Sequence[str] = ()) -> Path:
    """Add a wheel to the index in the folder ``index``, which is made if it is not there."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    release = f"{name.replace('-', '_')}-{version}"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Provides-Extra: {extra}" for extra in extras]
    metadata += [f"Requires-Dist: {need}" for need in needs]
    files = {
        "METADATA": "\n".join(metadata),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any",
        "RECORD": "\n".join(f"{release}.dist-info/{file},," for file in ("METADATA", "WHEEL", "RECORD")),
    }
    wheel = folder / f"{release}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in files.items():
            archive.writestr(f"{release}.dist-info/{file}", f"{text}\n")
    links = "\n".join(f'<a href="{file.name}">{file.name}</a>' for file in sorted(folder.glob("*.whl")))
    (folder / "index.html").write_text(f"<!DOCTYPE html>\n<html><body>\n{links}\n</body></html>\n")
    return wheel
