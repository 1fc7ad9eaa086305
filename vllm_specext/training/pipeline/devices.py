"""The GPUs of this process by the names that ``CUDA_VISIBLE_DEVICES`` takes, in which other processes get some."""

import os

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_devices(count: int) -> list[str]:
    """The names of the ``count`` GPUs that torch sees here."""
    given = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    return given[:count] if given else [str(number) for number in range(count)]
