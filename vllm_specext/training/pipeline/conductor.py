"""From settings to a drafter: the plan, then one stage after the other, each in a process of its own.

Stages are named by their modules, so that nothing here loads what they need.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.pipeline import folder as run_folder
from vllm_specext.training.pipeline.features_of import check_lender, check_taken_over, take_over
from vllm_specext.training.pipeline.folder import (
    BEST,
    CHECK,
    CHECKED,
    DATA,
    DRAFTER,
    FAILED_CHECK,
    FEATURES,
    LOG,
    LOGS,
    PLOTS,
    REPORT,
    STATE,
    TRAINED,
)
from vllm_specext.training.pipeline.launcher import Ended, module_command, run_process, threads_of_each
from vllm_specext.training.pipeline.plan import Plan, refuse_small_disk
from vllm_specext.training.pipeline.progress import LogLines
from vllm_specext.training.pipeline.record import Record, stage_inputs, write_record
from vllm_specext.training.pipeline.stage_process import DONE, INTERRUPTED, REFUSED

Show = Callable[[str], None]


@dataclass(frozen=True)
class StageOfRun:
    name: str
    module: str
    results: tuple[str, ...]
    """Files of the run's folder without which the stage has to be made again."""
    leaves: tuple[str, ...]
    """All that it leaves there, finished or not."""
    trains: bool = False


STAGES = (
    StageOfRun(
        "prepare",
        "vllm_specext.target_stages.prepare",
        results=(f"{DATA}/stats.json", FEATURES),
        leaves=(DATA, FEATURES),
    ),
    StageOfRun(
        "train",
        "vllm_specext.training.pipeline.train",
        results=(f"{STATE}/{TRAINED}/model.safetensors", f"{STATE}/{BEST}", LOG),
        leaves=(STATE, LOG),
        trains=True,
    ),
    StageOfRun(
        "export",
        "vllm_specext.training.pipeline.export",
        results=(f"{DRAFTER}/model.safetensors", f"{DRAFTER}/config.json", f"{DRAFTER}/README.md"),
        leaves=(DRAFTER,),
    ),
    StageOfRun(
        "check",
        "vllm_specext.target_stages.check",
        results=(CHECK, REPORT),
        leaves=(CHECK, FAILED_CHECK, CHECKED, REPORT, *PLOTS),
    ),
)


def run_training(
    record: Record, plan: Plan, output: Path, *, anew: bool, show: Show, features_of: Path | None = None
) -> int:
    """Make what is not there yet in ``output``; returns the exit status. ``anew`` removes an earlier run first.
    ``features_of``: the folder of a run whose rows and features are taken over.

    Raises ``ConfigurationError`` before anything is made if the folder is another run's, or has no room.
    """
    with ExitStack() as stack:
        output.mkdir(parents=True, exist_ok=True)
        lock = stack.enter_context(run_folder.locked(output))
        inputs = stage_inputs(record)
        prepared = inputs["prepare"], STAGES[0].results
        if features_of is not None:
            check_lender(output, features_of, *prepared)
        if anew:
            run_folder.restart(output)
        run_folder.check_same(output, record.settings.model_dump(mode="json"))
        run_folder.check_unchanged(output, record.hashes)
        check_taken_over(output, *prepared)
        if features_of is not None:
            take_over(output, features_of, *prepared)
        if not run_folder.is_done(output, "prepare", *prepared):
            refuse_small_disk(plan, output, _bytes_in(output / FEATURES))
        write_record(output, record, plan)
        for number, stage in enumerate(STAGES, start=1):
            what = f"{number}/{len(STAGES)} {stage.name}"
            if run_folder.is_done(output, stage.name, inputs[stage.name], stage.results):
                show(f"{what}: done already")
                continue
            show(what)
            run_folder.begin(output, stage.name, inputs[stage.name], stage.leaves)
            began = time.monotonic()
            ended = _run(stage, record, output, lock, show)
            if ended.status != DONE:
                return _tell_end(ended, stage, output, show)
            run_folder.record_done(output, stage.name, inputs[stage.name], time.monotonic() - began)
    return DONE


def _run(stage: StageOfRun, record: Record, output: Path, lock: int, show: Show) -> Ended:
    processes = record.processes if stage.trains else 1
    return run_process(
        module_command(stage.module, output, processes),
        output / LOGS / f"{stage.name}.log",
        show,
        lock=lock,
        environment=threads_of_each(processes),
        watch=LogLines(output / LOG) if stage.trains else tuple,
    )


def _tell_end(ended: Ended, stage: StageOfRun, output: Path, show: Show) -> int:
    if ended.sentence is not None:
        raise ConfigurationError(ended.sentence)
    log = output / LOGS / f"{stage.name}.log"
    if ended.status == INTERRUPTED:
        state = "its state is written" if stage.trains else "it begins again"
        show(f"interrupted in stage {stage.name}: {state}; the same command goes on")
    elif ended.status == REFUSED:
        show(f"stage {stage.name} was refused; {log} says why")
    else:
        show(f"stage {stage.name} did not end well; {log} says why, and the same command goes on from what is there")
    return ended.status


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
