"""Weights that are loaded while the server runs, as by a trainer (RLHF)."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap


def wrap_weight_changes() -> None:
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu_worker import Worker

    wrap(GPUModelRunner, "reload_weights", _reload_weights)
    wrap(Worker, "supports_draft_weight_updates", _supports_draft_weight_updates)
    wrap(Worker, "start_draft_weight_update", _start_draft_weight_update)
    wrap(Worker, "update_weights", _update_weights)
    wrap(Worker, "finish_weight_update", _finish_weight_update)


def _speculator(runner: Any) -> Any:
    """The ``StepSpeculator``; ``None`` where the drafter is none of ours, or on another stage of a pipeline."""
    from vllm_specext.engine.drafting.speculator import StepSpeculator

    return runner.speculator if isinstance(runner.speculator, StepSpeculator) else None


def _note(runner: Any) -> None:
    if (speculator := _speculator(runner)) is not None:
        speculator.derived.weights_changed()


def _put_back(runner: Any) -> None:
    if (speculator := _speculator(runner)) is not None:
        speculator.shared.put_back()


@replaces(
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner.reload_weights",
    name="weights from files",
    why="vLLM asks no speculator whether it holds something that was made of the weights that are replaced",
    how="wrapped: what was made of them is made anew before the next step",
    upstream="none known",
    until="vLLM tells its speculator that weights were loaded",
    signature="self weights_iterator weights_path is_checkpoint_format",
)
def _reload_weights(original: Callable) -> Callable:
    def reload_weights(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        finally:  # a part may have been loaded
            _note(self)

    return reload_weights


@replaces(
    "vllm.model_executor.models.llama.LlamaForCausalLM.load_weights",
    name="weights given to the target",
    why="trainers also call the model's own load_weights in the worker, past everything that vLLM has for it",
    how="set on the target's instance, around its own: what was made of its weights is made anew before the next step",
    upstream="none known",
    until="vLLM tells its speculator that weights were loaded",
    kind="set",
)
def note_loading(runner: Any) -> None:
    """Have weights noted that a trainer gives to the target's ``load_weights`` itself."""
    original = runner.model.load_weights

    @wraps(original)
    def load_weights(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:  # a part may have been loaded
            _note(runner)

    runner.model.load_weights = load_weights


@replaces(
    "vllm.v1.worker.gpu_worker.Worker.supports_draft_weight_updates",
    name="whether a drafter takes weights",
    why="vLLM tells a trainer that it may give weights to any drafter that has a model",
    how="wrapped: not where ours refuses them",
    upstream="none known",
    until="vLLM asks the speculator",
    signature="self",
)
def _supports_draft_weight_updates(original: Callable) -> Callable:
    def supports_draft_weight_updates(self: Any) -> bool:
        speculator = _speculator(self.model_runner)
        return bool(original(self)) and (speculator is None or speculator.that_takes_no_weights() is None)

    return supports_draft_weight_updates


@replaces(
    "vllm.v1.worker.gpu_worker.Worker.start_draft_weight_update",
    name="weights of a drafter from a trainer",
    why=(
        "a drafter's file may hold the target's embedding and output layer in an older state: loaded while the server "
        "runs, they would change the target"
    ),
    how="wrapped: what a drafter shares with the target is kept apart meanwhile; refused where that has not been tried",
    upstream="vLLM 0.33 does so for copies of output layers",
    until="vLLM leaves alone what a drafter shares with the target",
    signature="self",
)
def _start_draft_weight_update(original: Callable) -> Callable:
    def start_draft_weight_update(self: Any) -> None:
        speculator = _speculator(self.model_runner)
        if speculator is None or speculator.shared.are_out:  # which vLLM refuses
            return original(self)
        speculator.prepare_for_weights()
        try:
            return original(self)
        except BaseException:
            _put_back(self.model_runner)
            raise

    return start_draft_weight_update


@replaces(
    "vllm.v1.worker.gpu_worker.Worker.update_weights",
    name="weights from a trainer",
    why="vLLM ends an update whose weights do not fit, and asks no speculator",
    how="wrapped: what was kept apart of a drafter is put back where the update has ended",
    upstream="none known",
    until="vLLM leaves alone what a drafter shares with the target",
    signature="self update_info",
)
def _update_weights(original: Callable) -> Callable:
    def update_weights(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except BaseException:
            _put_back(self.model_runner)
            raise

    return update_weights


@replaces(
    "vllm.v1.worker.gpu_worker.Worker.finish_weight_update",
    name="the end of weights from a trainer",
    why="vLLM asks no speculator whether it holds something that was made of the weights that are replaced",
    how="wrapped: what was kept apart is put back, and what was made of weights is made anew before the next step",
    upstream="vLLM 0.33 makes its own drafters' output layers anew",
    until="vLLM tells its speculator that weights were loaded",
    signature="self",
)
def _finish_weight_update(original: Callable) -> Callable:
    def finish_weight_update(self: Any) -> None:
        try:
            original(self)
        finally:
            _put_back(self.model_runner)
            _note(self.model_runner)

    return finish_weight_update
