"""Requests for structured outputs in a benchmark. In a module of its own, which engines in other processes import."""

from dataclasses import dataclass
from typing import Any

from vllm_specext.measure.sampling import Sampling


@dataclass(frozen=True)
class Structured(Sampling):
    kind: str = "regex"
    """Of the structure, by vLLM's name."""
    structure: Any = ""

    def of(self, number: int) -> dict[str, Any]:
        from vllm.sampling_params import StructuredOutputsParams

        return super().of(number) | {"structured_outputs": StructuredOutputsParams(**{self.kind: self.structure})}
