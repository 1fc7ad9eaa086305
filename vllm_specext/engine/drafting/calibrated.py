"""The sharpness with which the trees of a step are drafted, learned from those that it has verified."""

import numpy as np
import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_specext.engine.drafting.step import Step
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.tree.calibration import Calibration


class CalibratedTrees:
    def __init__(self, device: torch.device) -> None:
        self._calibration, self._device = Calibration(device), device

    def sharpness(self, step: Step, trees: TreeStates | None) -> Tensor:
        """``[R]`` float32, after what the ``step`` says of the ``trees`` that it verified. A number of accepted tokens
        says nothing of a draft that is none of our trees: a chain, or what a request or its client has brought."""
        kinds = self._calibration.kinds(step.temperature[step.batch.idx_mapping])
        drafted = step.batch.num_draft_tokens_per_req
        verified = 0 if drafted is None or step.dummy else int(np.count_nonzero(drafted))  # these requests come first
        if trees is not None and verified:
            is_told = trees.is_told[step.batch.idx_mapping_np[:verified]]
            if is_told.any():
                expected = trees.expected[step.batch.idx_mapping[:verified]]
                counts = None if is_told.all() else async_tensor_h2d(is_told, device=self._device)
                self._calibration.learn(kinds[:verified], expected, step.num_sampled[:verified] - 1, counts)
        return self._calibration.sharpness(kinds)
