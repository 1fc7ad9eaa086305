"""The methods by name. A method is added by one entry here, its options in ``options.py`` and one folder under
``methods/``.

Classes are named by path and imported when they are needed, so that listing the methods loads neither torch nor vLLM.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from vllm_specext.options import GriffinOptions, MethodOptions


@dataclass(frozen=True)
class Method:
    name: str
    summary: str
    options: type[MethodOptions]
    preparation: str
    """``module:function`` that checks the drafter against the target and returns the overrides of its configuration."""
    speculator: str
    """``module:class`` of vLLM's ``DraftModelSpeculator``."""
    architecture: str
    """Name under which the drafter's serving model is registered with vLLM."""
    serving_model: str
    """``module:class`` of the drafter's serving model."""


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="griffin",
            summary="token-aligned draft head over the target's last hidden states (NeurIPS 2025)",
            options=GriffinOptions,
            preparation="vllm_specext.methods.griffin.prepare:prepare",
            speculator="vllm_specext.methods.griffin.speculator:GriffinSpeculator",
            architecture="GriffinForCausalLM",
            serving_model="vllm_specext.methods.griffin.serving:GriffinForCausalLM",
        ),
    )
}


def load(path: str) -> Any:
    """The object that ``module:name`` stands for."""
    module, name = path.split(":")
    return getattr(import_module(module), name)
