"""The methods and the loads whose steps are measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite import synthetic

STOCK = frozenset({"eagle", "eagle3", "dspark"})
"""vLLM's own methods."""


@dataclass(frozen=True)
class Load:
    requests: int
    context: int
    """Tokens of a prompt."""
    arriving: bool = False
    """Whether new prompts take the places of requests while the others go on."""

    def row(self) -> dict[str, Any]:
        load = "prompts arrive" if self.arriving else "all decode"
        return {"requests": self.requests, "context": self.context, "load": load}


IN_FLOAT8 = {"quantization": "fp8_per_channel", "draft_lm_head_quantization": "fp8"}
"""A drafter's keys."""

LOADS = (
    *(Load(requests, 1024) for requests in (1, 4, 16, 64)),
    *(Load(requests, 8192) for requests in (1, 4, 8)),
    Load(1, 32768),
    Load(16, 1024, arriving=True),
)


MEBIBYTES = 46 << 10
"""Memory of a GPU that an engine with Llama-3-8B takes: 15 GiB of weights, 18 of keys and values, a drafter, graphs."""


@dataclass(frozen=True)
class Method:
    drafter: str | None = None
    """The name of a method of vLLM's or of ours."""
    nodes: int = 0
    levels: int = 0
    """Longest path."""
    top_k: int = 1
    fixed: bool = True
    """Whether as much is drafted at every load; otherwise as by default."""
    float8: bool = False
    """Whether the drafter's weights and its output layer are."""

    @property
    def model(self) -> str:
        """The dummy drafter's folder."""
        return (self.drafter or "").removesuffix("-tree")

    def config(self, drafter: Path, requests: Iterable[int]) -> dict[str, Any] | None:
        """For up to so many ``requests``."""
        if self.drafter is None:
            return None
        own: dict[str, Any] = {"method": self.drafter, "model": str(drafter), "num_speculative_tokens": self.nodes}
        if self.drafter in STOCK:
            rates = synthetic.unconditional(synthetic.rate_for(self.nodes), self.nodes)
            return own | {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        if self.float8:
            own |= IN_FLOAT8
        if not self.fixed:
            return own
        own["tree_top_k"] = self.top_k
        if self.top_k == 1:
            return own | {"adaptive_drafts": False}
        # The same tree at every load: how trees should shrink is what is to be found out.
        schedule = [[1, max(requests), self.nodes]]
        return own | {"tree_depth": self.levels, "num_speculative_tokens_per_batch_size": schedule}


METHODS = {
    "plain": Method(),
    "griffin-default": Method("griffin", 59, 6, top_k=10, fixed=False),
    "eagle-chain-4": Method("eagle", 4, 4),
    "griffin-chain-4": Method("griffin", 4, 4),
    "griffin-tree-59": Method("griffin", 59, 6, top_k=10),
    "griffin-chain-4-fp8": Method("griffin", 4, 4, float8=True),
    "griffin-tree-59-fp8": Method("griffin", 59, 6, top_k=10, float8=True),
    "eagle3-chain-4": Method("eagle3", 4, 4),
    "eagle3-tree-59": Method("eagle3-tree", 59, 6, top_k=10),
    "griffin-tree-31": Method("griffin", 31, 6, top_k=8),
    "griffin-tree-15": Method("griffin", 15, 6, top_k=4),
    "dspark-chain-7": Method("dspark", 7, 7),
    "peagle-tree-59": Method("peagle-tree", 59, 8, top_k=10),
}
"""What matters most comes first."""
