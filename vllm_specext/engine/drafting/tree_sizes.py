"""Which tree is drafted for what the scheduler asks for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm.config import VllmConfig

from vllm_specext.engine.graph_sizes import drafted_sizes, most_drafted
from vllm_specext.tree.budget import TreeShape, shape_for
from vllm_specext.tree.draft_size import depths_of


@dataclass(frozen=True)
class TreeSizes:
    """Shapes of trees by number of nodes and of running requests."""

    largest: TreeShape
    most_drafted: Sequence[int]
    """The most nodes that the schedule has while at least so many requests run, from 0 requests on."""
    max_rows: int
    """Rows that a pass of the drafter may have."""
    any_depth: bool = False
    """Whether a step says how deep its trees are."""
    grows_chains: bool = False
    """Whether a chain is grown as a tree of width 1; otherwise something else drafts it."""

    @classmethod
    def of(cls, vllm_config: VllmConfig, largest: TreeShape, grows_chains: bool = False) -> "TreeSizes":
        """Those of vLLM's configuration."""
        rows = vllm_config.scheduler_config.max_num_batched_tokens
        return cls(largest, most_drafted(vllm_config), rows, vllm_config.speculative_config.any_depth, grows_chains)

    def shape_for(self, nodes: int, requests: int) -> TreeShape:
        """What fits ``nodes``, what the schedule has for so many requests and, with all requests' levels in one pass,
        the drafter's buffers. vLLM's warm-up asks for more than the schedule has, whose memory nobody counted."""
        nodes = min(nodes, self.most_drafted[requests])
        shape = shape_for(nodes, self.largest)
        if shape.top_k * requests <= self.max_rows:
            return shape
        return shape_for(min(nodes, self.largest.depth), self.largest)

    def depths(self, shape: TreeShape) -> list[int]:
        """Depths at which a tree of this ``shape`` may end, ascending, its own the last."""
        return depths_of(shape) if self.any_depth else [shape.depth]

    def grown(self, nodes: int, requests: int) -> TreeShape | None:
        """What is grown for ``nodes`` scheduled, ``None`` for nothing."""
        shape = self.shape_for(nodes, requests)
        return shape if shape.top_k > 1 or (self.grows_chains and shape.nodes) else None

    def captured(self, vllm_config: VllmConfig) -> Mapping[int, Sequence[TreeShape]]:
        """The trees to capture by number of requests, largest last."""
        grown = {
            number: [shape for nodes in drafted if (shape := self.grown(nodes, number)) is not None]
            for number, drafted in drafted_sizes(vllm_config).items()
        }
        return {number: list(dict.fromkeys(shapes)) for number, shapes in grown.items() if shapes}

    def of_schedule(self, schedule: Sequence[Sequence[int]], most: int) -> Iterator[tuple[int, TreeShape]]:
        """The most requests of each range of the ``schedule`` and the trees that are grown for them; at most ``most``
        requests run."""
        for _, last, nodes in schedule:
            requests = min(last, most)
            if (shape := self.grown(nodes, requests)) is not None:
                yield requests, shape
