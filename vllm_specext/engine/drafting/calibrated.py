"""The sharpness with which the trees of a step are drafted, learned from those that it has verified."""

import numpy as np
import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_specext.engine.drafting.step import Step
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.kernels.calibration import calibrate
from vllm_specext.tree.calibration import Learned


class CalibratedTrees:
    def __init__(self, device: torch.device) -> None:
        self._learned, self._device = Learned.nothing(device), device

    def sharpness(self, step: Step, trees: TreeStates) -> Tensor:
        """``[R]`` float32, after what the ``step`` says of the ``trees`` that it verified. A number of accepted tokens
        says nothing of a draft that is not one of our trees, whole: of a chain, of what a request or its client has
        brought, and of a tree that the scheduler has cut."""
        drafted = step.batch.num_draft_tokens_per_req
        verified = 0 if drafted is None or step.dummy else int(np.count_nonzero(drafted))  # these requests come first
        counts = None
        if verified:
            is_whole = trees.told[step.batch.idx_mapping_np[:verified]] == drafted[:verified]
            if not is_whole.any():
                verified = 0
            elif not is_whole.all():
                counts = async_tensor_h2d(is_whole.view(np.uint8), device=self._device)
        slots, given = step.batch.idx_mapping, (step.temperature, trees.expected, step.num_sampled)
        return calibrate(self._learned, slots, *given, verified, counts)
