"""Faults of verification: it believes the drafter, whatever the target draws, or takes a tree's rows for a chain's."""

from typing import Any


def accept_every_draft() -> None:
    """Verification believes the drafter."""
    import torch

    import vllm_specext.engine.verification.sampler as verification

    stock = verification.accept_chain

    def accept_chain(drawn: Any, drafted: Any, cu_num_logits: Any, width: int) -> Any:
        rows = torch.arange(len(drawn))
        rows = rows[~torch.isin(rows + 1, cu_num_logits)]  # those that a drafted row of the same request follows
        rows = rows[drafted[rows + 1] >= 0]
        drawn = drawn.index_copy(0, rows, drafted[rows + 1].to(drawn.dtype))
        return stock(drawn, drafted, cu_num_logits, width)

    verification.accept_chain = accept_chain  # type: ignore[assignment]


def accept_the_best_node_of_every_tree() -> None:
    """Verification believes the drafter about the first token."""
    import vllm_specext.engine.verification.sampler as verification

    stock = verification.accept_tree

    def accept_tree(drawn: Any, drafted: Any, cu_num_logits: Any, *tree: Any) -> Any:
        roots = cu_num_logits[:-1][cu_num_logits.diff() > 1].long()  # those that a node follows
        roots = roots[drafted[roots + 1] >= 0]
        drawn = drawn.index_copy(0, roots, drafted[roots + 1].to(drawn.dtype))
        return stock(drawn, drafted, cu_num_logits, *tree)

    verification.accept_tree = accept_tree


def count_all_earlier_rows() -> None:
    """Penalties, bad words and budgets for thinking take all earlier rows of a request for the text before a row, as in
    chains."""
    import vllm_specext.engine.verification.sampler as verification

    verification.read_paths = lambda sampler, trees: None


def look_up_without_ancestors() -> None:
    """Beside trees, what is looked up or predicted sees nothing but itself."""
    import torch

    import vllm_specext.engine.drafting.predictions as predictions
    from vllm_specext.tree.topology import Topology, pack

    class Blind(Topology):
        @classmethod
        def chain(cls, requests: int, nodes: int, device: Any) -> Topology:
            made = Topology.chain(requests, nodes, device)
            alone = pack(torch.eye(nodes + 1, dtype=torch.bool)).expand_as(made.ancestors)
            return Topology(made.parents, made.depths, alone.clone())

    predictions.Topology = Blind  # type: ignore[misc]


def follow_grammars_as_in_chains() -> None:
    """A grammar is advanced along the nodes of a tree in the order of their numbers."""
    import vllm_specext.engine.scheduler.grammars as grammars
    from vllm_specext.engine.scheduler.told_parents import parents_in

    def chains_in(drafts: Any) -> list[list[int]]:
        return [list(range(len(parents))) for parents in parents_in(drafts) or ()]

    grammars.parents_in = chains_in


def overlook_custom_processors() -> None:
    """Trees are drafted for requests that a user's logits processor reads."""
    import vllm_specext.engine.scheduler.scheduling as scheduling
    import vllm_specext.engine.verification.noted_requests as noted_requests

    scheduling.has_custom_processors = lambda model_config: False
    noted_requests.has_custom_processors = lambda model_config: False
