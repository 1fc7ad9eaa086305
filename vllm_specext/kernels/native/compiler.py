"""Compiling the bodies in C++, and keeping the library for the next process.

Its file is named after all that decides what is in it: sources, flags, compiler and processor, because a home may be
shared by machines. It is written beside its place and then renamed, so that processes that start together each find a
whole one, and it ends with a digest of the rest, so that a damaged file is found out before it is loaded.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from vllm_specext.this_machine import cache_folder, is_own, processor

FOLDER = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC")
COMPILERS = ("c++", "g++", "clang++")
SECONDS = 300
"""Limit of a compilation. It takes seconds on an idle machine."""
DIGEST = hashlib.sha256().digest_size


class CompilationError(Exception):
    """Why there is no library, in a few words."""


def compiled(load: Callable[[Path], None]) -> None:
    """Have ``load`` load the library, from an earlier compilation where there is one. ``load`` raises ``OSError`` for a
    file that it cannot load. Raises ``CompilationError`` where none can be made."""
    compiler = find()
    flags = (*FLAGS, *threading_flags(compiler))
    name = f"kernels-{digest_of(compiler, flags)}.so"
    try:
        folder = cache_folder()
    except (OSError, RuntimeError):  # the latter where there is no home
        with tempfile.TemporaryDirectory(prefix="vllm-specext-") as private:
            path = Path(private) / name
            build(compiler, flags, path)
            load(path)  # stays loaded when the file is gone
        return
    path = folder / name
    if is_whole(path):
        try:
            load(path)
            return
        except OSError:
            pass  # compiled again
    build(compiler, flags, path)
    load(path)


def find() -> str:
    """The C++ compiler: that of ``CXX``, or the first of the usual names."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    for name in names:
        if path := shutil.which(name):
            return path
    raise CompilationError(f"there is no C++ compiler ({', '.join(names)})")


def version(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilationError(f"the C++ compiler does not run ({type(error).__name__})") from error


def threading_flags(compiler: str) -> tuple[str, ...]:
    """OpenMP by the library that torch has loaded, whose threads are where vLLM has bound them: those of a second
    library would all run on the core of the thread that starts them."""
    runtime = next(loaded_openmp(), None)
    if runtime is None or "clang" in version(compiler):  # clang calls functions that GCC's library does not have
        return ()
    # What it provides is not taken from the compiler's own library any more.
    return "-fopenmp", "-Wl,--as-needed", runtime


def loaded_openmp() -> Iterator[str]:
    """GCC's OpenMP libraries in this process."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return
    yield from sorted(set(re.findall(r"(/\S*/libgomp[^/\s]*\.so[^/\s]*)$", maps, re.MULTILINE)))


def sources() -> list[Path]:
    return sorted(FOLDER.glob("*.cpp"))


def digest_of(compiler: str, flags: tuple[str, ...]) -> str:
    hashed = hashlib.sha256()
    parts = [path.read_bytes() for path in (*sources(), *sorted(FOLDER.glob("*.h")))]
    for part in (*parts, *(text.encode() for text in (*flags, compiler, version(compiler), processor()))):
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.hexdigest()[:32]


def is_whole(path: Path) -> bool:
    """Whether a compiled library is there, as it was written and by this user."""
    try:
        if not is_own(path.lstat()):
            return False
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-DIGEST]).digest() == content[-DIGEST:]


def build(compiler: str, flags: tuple[str, ...], path: Path) -> None:
    """Compile the library to ``path``."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".compiling-") as own:
        made = Path(own) / path.name
        # Libraries after the sources that need them.
        command = [compiler, *flags[: len(FLAGS)], "-o", str(made), *map(str, sources()), *flags[len(FLAGS) :]]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilationError(f"the C++ compiler does not run ({type(error).__name__})") from error
        if done.returncode or not made.is_file():
            said = next((line for line in done.stderr.splitlines() if "error" in line), "")
            raise CompilationError(f"the C++ compiler fails with status {done.returncode} {said[:200]}".rstrip())
        content = made.read_bytes()
        # The loader looks at nothing after what the file's headers name.
        made.write_bytes(content + hashlib.sha256(content).digest())
        made.replace(path)
