"""Deliberate faults in what is kept of passes and of weights."""

from contextlib import nullcontext
from typing import Any


def replay_on_the_recorded_inputs() -> None:
    """A recorded pass of the target reads what the step handed over that it was recorded at, and nobody compares."""
    import vllm_specext.engine.verification.recorded_target as recorded_target

    def replay(self: Any, recorded: Any, tensors: Any, inputs: Any) -> Any:
        recorded.recording.replay()
        return recorded.result

    recorded_target.RecordedTarget._replay = replay  # type: ignore[method-assign]


def keep_the_recorded_result() -> None:
    """A recorded pass of the target is not replayed at all."""
    import vllm_specext.engine.verification.recorded_target as recorded_target

    recorded_target.RecordedTarget._replay = (  # type: ignore[method-assign]
        lambda self, recorded, tensors, inputs: recorded.result
    )


handlers: list[Any] = []
"""Products of a CPU with weights in its own layout, which would otherwise be gone with the weights."""


def keep_what_was_recorded() -> None:
    """Passes of the target go on with the weights that they were recorded with."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    import vllm_specext.engine.verification.recorded_target as recorded_target

    stock = UnquantizedLinearMethod.process_weights_after_loading

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        handlers.append(getattr(layer, "cpu_linear", None))
        stock(self, layer)

    UnquantizedLinearMethod.process_weights_after_loading = process_weights_after_loading  # type: ignore[method-assign]
    recorded_target.RecordedTarget.forget = lambda self: None  # type: ignore[method-assign]


def load_what_is_shared() -> None:
    """A trainer's weights of a drafter go into what it shares with the target, too."""
    from vllm_specext.engine.drafting.shared_modules import SharedModules

    SharedModules.take_out = lambda self: None  # type: ignore[method-assign]


def keep_nothing() -> None:
    """Nothing lies in memory that a sleep keeps."""
    from vllm_specext.engine.drafting import loaded_speculator
    from vllm_specext.engine.verification import kept_state

    loaded_speculator.kept_memory = kept_state.kept_memory = lambda vllm_config: nullcontext()


def keep_the_drafter_alone() -> None:
    """What verification has beside the target does not lie in memory that a sleep keeps."""
    from vllm_specext.engine.verification import kept_state

    kept_state.kept_memory = lambda vllm_config: nullcontext()
