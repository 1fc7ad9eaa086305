"""Rows and features that another run has made, for a training with another recipe or another drafter to begin with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import read_object
from vllm_specext.training.pipeline.folder import (
    DATA,
    FEATURES,
    FREE_TO_CHANGE,
    PLAN,
    begin,
    first_difference,
    is_done,
    record_done,
)

PREPARE = "prepare"
BESIDE = ("recipe.", "init", *FREE_TO_CHANGE)
"""Settings that features do not follow from, or with what their names begin."""


def check_features_of(other: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a run whose features are not those that the ``settings`` ask for, as far as these say so."""
    if settings["stream"]:
        raise ConfigurationError("--features-of cannot be combined with --stream, which keeps no features.")
    path = other / PLAN
    before = read_object(path).get("settings") if path.exists() else None
    if not isinstance(before, dict):
        raise ConfigurationError(f"--features-of is {str(other)!r}, which is not the folder of a run.")
    if (found := first_difference(before, settings, BESIDE)) is not None:
        key, old, new = found
        raise ConfigurationError(
            f"--features-of is {str(other)!r}, which was made with {key} {old}, but {key} is {new} now; all but the "
            "recipe and --init have to be the same."
        )


def check_lender(folder: Path, other: Path, inputs: str, results: Sequence[str]) -> None:
    """Refuse to take rows and features of ``other`` for the run in ``folder`` where they are its own, or not those that
    follow from ``inputs``, the hash of what goes into its first stage. Before a restart, which would remove its own."""
    own = folder.resolve()
    if other.resolve() == own or any((other / name).resolve().is_relative_to(own) for name in (DATA, FEATURES)):
        raise ConfigurationError(
            f"--features-of is {str(other)!r}, whose features are those of --output; expected another training's."
        )
    if not is_done(other, PREPARE, inputs, results):
        raise ConfigurationError(
            f"--features-of is {str(other)!r}, whose features are not there, not complete, or of other files or "
            "weights than are there now."
        )


def check_taken_over(folder: Path, inputs: str, results: Sequence[str]) -> None:
    """Refuse to go on in ``folder`` with another run's features that are not what they were when taken over."""
    link = folder / FEATURES
    if link.is_symlink() and not is_done(other := link.resolve().parent, PREPARE, inputs, results):
        raise ConfigurationError(
            f"{str(folder)!r} has the features of {str(other)!r}, which are not there any more, or were made anew; "
            "expected the same, or --restart to begin anew."
        )


def take_over(folder: Path, other: Path, inputs: str, results: Sequence[str]) -> None:
    """Link the rows and features of ``other``, which was checked, into the run in ``folder``, whose first stage is done
    with that."""
    if is_done(folder, PREPARE, inputs, results):
        return
    if any((folder / name).is_dir() and not (folder / name).is_symlink() for name in (DATA, FEATURES)):
        raise ConfigurationError(
            f"--output is {str(folder)!r}, which has features of its own, so that --features-of takes none over; "
            "expected a new folder, or --restart to begin anew."
        )
    begin(folder, PREPARE, inputs, (DATA, FEATURES))
    for name in (DATA, FEATURES):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to((other / name).resolve(), target_is_directory=True)
    record_done(folder, PREPARE, inputs, 0)
