"""The numbers of the target's layers in ``eagle_config`` of an EAGLE-3 drafter's ``config.json``."""

from collections.abc import Sequence


def as_inputs(ids: Sequence[int]) -> list[int]:
    """``ids`` of ``eagle_config`` as vLLM counts: ``i`` is the input of layer ``i``.

    SpecForge and ModelOpt write the layers whose output is read, and others vLLM's numbers. SGLang tells them apart by
    a first number of 1, and so do we.
    """
    return [id + 1 for id in ids] if ids[0] == 1 else list(ids)
