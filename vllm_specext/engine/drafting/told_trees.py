"""The shape of drafted trees, for a scheduler that follows grammars along them."""

from typing import Any

import torch
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler

from vllm_specext.engine.drafting.step import Step
from vllm_specext.engine.scheduler.told_parents import tell_parents
from vllm_specext.engine.verification.tree_states import TreeStates


class ToldTrees:
    """Copies them to the host as vLLM does with the drafted tokens: after steps with structured outputs, without a wait
    until somebody asks."""

    def __init__(self, device: torch.device) -> None:
        self._copied = DraftTokensHandler(device)
        self._are_told = False

    def take(self, step: Step, trees: TreeStates | None) -> None:
        """After the drafts of ``step`` are among the ``trees``; ``None`` where the target verifies chains."""
        self._are_told = trees is not None and step.batch.has_structured_output_reqs and not step.dummy
        if trees is not None and self._are_told:
            parents = trees.topology.parents[step.batch.idx_mapping, 1 : step.length + 1]
            self._copied.set_draft_tokens(step.batch, parents)

    def tell(self, drafts: DraftTokenIds) -> None:
        """Add the parents to the tokens that were drafted after the same step."""
        if self._are_told and self._copied.req_ids is drafts.req_ids:
            of_trees: Any = self._copied.get_draft_tokens()
            tell_parents(drafts, of_trees.draft_token_ids)
