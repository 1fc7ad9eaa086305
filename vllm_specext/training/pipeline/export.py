"""The third stage, ``python -m vllm_specext.training.pipeline.export RUN``: the drafter as ``vllm serve`` loads it, and
what has to be known of it beside it."""

import json
import shutil
from pathlib import Path
from typing import Any

from vllm_specext import served_drafter
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import read_object
from vllm_specext.training.data.folder import read_stats
from vllm_specext.training.pipeline.card import card
from vllm_specext.training.pipeline.folder import (
    BEST,
    DATA,
    DRAFTER,
    LOG,
    PLAN,
    STATE,
    TRAINED,
    seconds_of,
    write_json,
)
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.record import read_record
from vllm_specext.training.pipeline.stage_process import Say, run_stage
from vllm_specext.training.pipeline.target import read_target
from vllm_specext.training.run import load_best

ACCEPTANCE = "acceptance.json"


def work(folder: Path, say: Say) -> None:
    record = read_record(folder)
    trained, drafter = folder / STATE / TRAINED, folder / DRAFTER
    method = TRAINABLE[record.settings.method]
    model = method.read(trained, read_target(record.settings.target))
    load_best(folder / STATE / BEST, model)
    found = best_entry(read_log(folder))
    if drafter.exists():
        shutil.rmtree(drafter)
    method.export(model, drafter)
    served_drafter.write(drafter, method.serves, record.settings.target)
    for name, source in (("training.json", trained / "training.json"), (PLAN, folder / PLAN)):
        shutil.copyfile(source, drafter / name)
    simulated = acceptance_of(found)
    write_json(drafter / ACCEPTANCE, {"simulated": simulated})
    stats = read_stats(folder / DATA)
    text = card(method.title, record, read_object(folder / PLAN)["versions"], stats, simulated, seconds_of(folder))
    (drafter / "README.md").write_text(text, encoding="utf-8")
    tau = simulated["tokens_per_verification"]
    say(f"{drafter} has the weights of stage {found['stage']}, step {found['step']}: {tau:.2f} tokens per verification")


def read_log(folder: Path) -> list[dict[str, Any]]:
    try:
        with (folder / LOG).open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{folder / LOG} cannot be read as the log of a training ({type(error).__name__})."
        ) from None


def best_entry(log: list[dict[str, Any]]) -> dict[str, Any]:
    """The entry whose weights are kept as the best: the first with the most tokens per verification."""
    evaluated = [entry for entry in log if "valid/tau_chain" in entry]
    if not evaluated:
        raise ConfigurationError(f"{LOG} has no figure valid/tau_chain; expected at least one evaluation.")
    return max(evaluated, key=lambda entry: entry["valid/tau_chain"])


def acceptance_of(entry: dict[str, Any]) -> dict[str, Any]:
    """Greedy chains on held-out answers, before any server."""
    prefix = "valid/accept/depth_"
    depths = sorted((int(key.removeprefix(prefix)), value) for key, value in entry.items() if key.startswith(prefix))
    return {
        "tokens_per_verification": entry["valid/tau_chain"],
        "accepted_per_depth": [value for _, value in depths],
        "stage": entry["stage"],
        "step": entry["step"],
    }


if __name__ == "__main__":
    run_stage(work)
