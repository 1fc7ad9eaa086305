"""How answers are drawn: greedily, or at a temperature with a seed for each request."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sampling:
    """``temperature`` 0 takes the likeliest token. Above 0 tokens are drawn, from the likeliest that have a probability
    of ``top_p`` together."""

    temperature: float = 0.0
    top_p: float = 1.0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def of(self, number: int) -> dict[str, Any]:
        """What request ``number`` of a turn says of sampling, with vLLM's and OpenAI's names. Its seed is its number,
        so that every row of a run draws with the same random numbers."""
        if self.is_greedy:
            return {"temperature": 0.0}
        return {"temperature": self.temperature, "top_p": self.top_p, "seed": number}

    def __str__(self) -> str:
        if self.is_greedy:
            return "temperature 0 (greedy)"
        return f"temperature {self.temperature:g}" + (f" and top-p {self.top_p:g}" if self.top_p < 1 else "")


GREEDY = Sampling()
