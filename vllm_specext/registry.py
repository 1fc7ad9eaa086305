"""The methods by name. A method is added by one entry here, its options in ``options.py`` and one folder under
``methods/``.

Classes are named by path and imported when they are needed, so that listing the methods loads neither torch nor vLLM.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from vllm_specext.options import (
    GriffinOptions,
    MethodOptions,
    MoAOptions,
    SlemOptions,
    SlrsOptions,
    SwiftOptions,
    TliOptions,
)


@dataclass(frozen=True)
class Method:
    name: str
    summary: str
    options: type[MethodOptions]
    preparation: str
    """``module:function`` that checks the drafter against the target and returns the overrides of its configuration."""
    speculator: str
    """``module:class`` of vLLM's ``DraftModelSpeculator``."""
    check: str | None = None
    """``module:function`` that looks at the finished configuration."""
    architecture: str | None = None
    """Name under which the drafter's serving model is registered with vLLM; ``None`` where there is no drafter."""
    serving_model: str | None = None
    """``module:class`` of the drafter's serving model."""
    metrics: str | None = None
    """``module:name`` of two classes in place of the encoder-cache connector's: for Prometheus and for the log."""


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
        Method(
            name="moa",
            summary="mixture of attentions over the target's own keys and values of all layers (ICLR 2025)",
            options=MoAOptions,
            preparation="vllm_specext.methods.moa.prepare:prepare",
            speculator="vllm_specext.methods.moa.speculator:MoASpeculator",
            architecture="MOASpecModel",
            serving_model="vllm_specext.methods.moa.serving:MoAForCausalLM",
        ),
        Method(
            name="swift",
            summary="the target drafts for itself by skipping layers that it learns to skip while serving (ICLR 2025)",
            options=SwiftOptions,
            preparation="vllm_specext.methods.swift.prepare:prepare",
            speculator="vllm_specext.methods.swift.speculator:SwiftSpeculator",
            metrics="vllm_specext.methods.swift.metrics:METRICS",
        ),
        Method(
            name="slem",
            summary="any language model drafts text, which becomes the target's tokens (ICML 2025)",
            options=SlemOptions,
            preparation="vllm_specext.methods.foreign_vocab.prepare:prepare",
            check="vllm_specext.methods.foreign_vocab.prepare:check",
            speculator="vllm_specext.methods.foreign_vocab.slem:SlemSpeculator",
        ),
        Method(
            name="tli",
            summary="a language model drafts from the tokens that its vocabulary shares with the target's (ICML 2025)",
            options=TliOptions,
            preparation="vllm_specext.methods.foreign_vocab.prepare:prepare",
            check="vllm_specext.methods.foreign_vocab.prepare:check",
            speculator="vllm_specext.methods.foreign_vocab.tli:TliSpeculator",
        ),
        Method(
            name="slrs",
            summary="a language model of bytes or few tokens drafts by the law of the texts that it writes (ICML 2025)",
            options=SlrsOptions,
            preparation="vllm_specext.methods.foreign_vocab.prepare:prepare",
            check="vllm_specext.methods.foreign_vocab.prepare:check",
            speculator="vllm_specext.methods.foreign_vocab.slrs:SlrsSpeculator",
        ),
    )
}


def load(path: str) -> Any:
    """The object that ``module:name`` stands for."""
    module, name = path.split(":")
    return getattr(import_module(module), name)
