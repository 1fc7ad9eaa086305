"""Learning how far drafters can be trusted, in C++ on a CPU."""

import torch
from torch import Tensor

from vllm_specext.kernels.native.operators import BYTE, INTEGER, SINGLE, Operator
from vllm_specext.tree.calibration import LEAST, MOST, PATIENCE, Learned

CALIBRATE = Operator(
    "calibrate",
    {
        "slots": INTEGER,
        "temperatures": SINGLE,
        "expected": SINGLE,
        "num_sampled": INTEGER,
        "counts": BYTE,
        "up_to": SINGLE,
        "out_logarithms": SINGLE,
        "out_sharpness": SINGLE,
    },
    "int verified, float patience, float least, float most",
)


def takes(slots: Tensor, temperatures: Tensor, expected: Tensor, num_sampled: Tensor) -> bool:
    return CALIBRATE.takes(slots, temperatures, expected, num_sampled)


def calibrate(
    learned: Learned,
    slots: Tensor,
    temperatures: Tensor,
    expected: Tensor,
    num_sampled: Tensor,
    verified: int,
    counts: Tensor | None,
) -> Tensor:
    counts = torch.empty(0, dtype=torch.uint8) if counts is None else counts  # none: all count
    sharpness = torch.empty(len(slots), dtype=torch.float32)
    given = slots, temperatures, expected, num_sampled, counts, learned.up_to
    CALIBRATE.overload(*given, learned.logarithms, sharpness, verified, PATIENCE, LEAST, MOST)
    return sharpness
