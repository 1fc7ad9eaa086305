"""What was made of weights once, and has to be made anew after others were loaded in their place.

A trainer (RLHF) loads new weights into a target that goes on serving. A drafter may hold a copy of its output layer:
some of its rows, or all of them in float8.
"""

from collections.abc import Callable

import torch
from vllm.config import VllmConfig, set_current_vllm_config


class DerivedWeights:
    def __init__(self, vllm_config: VllmConfig) -> None:
        self._vllm_config = vllm_config
        self._renew: dict[str, Callable[[], None]] = {}
        self._are_old = False

    def add(self, name: str, renew: Callable[[], None]) -> None:
        """Have ``renew`` make anew what has this ``name``, in place: captured graphs read it. It takes the place of
        what had the name before."""
        self._renew[name] = renew

    def weights_changed(self) -> None:
        """Take note that weights were loaded. More may follow before the next step."""
        self._are_old = True

    def renew(self) -> None:
        """Make anew what is older than the weights. Called in every step, which nearly always finds nothing to do."""
        if self._are_old:
            with torch.inference_mode(), set_current_vllm_config(self._vllm_config):
                for renew in self._renew.values():
                    renew()
            self._are_old = False
