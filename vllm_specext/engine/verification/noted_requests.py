"""What the verifier and drafters have to know of requests beside their tokens, noted when vLLM's state gets them."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from vllm_specext.engine.requests import Drafting, drafting_for, has_custom_processors


@cache
def noting_requests(base: Any) -> Any:
    """Subclass of ``base``, vLLM's per-model state."""

    class NotingModelState(base):
        drafting: np.ndarray
        """What each request slot may be drafted, ``Drafting`` values ``[S]``."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.drafting = np.full(self.max_num_reqs, Drafting.TREE)
            self._custom_processors = has_custom_processors(self.model_config)
            self._told: Callable[[int, Any], None] | None = None

        def tell(self, listener: Callable[[int, Any], None]) -> None:
            """Have a speculator that has to know more of requests than their tokens called with the slot and vLLM's
            ``NewRequestData`` of every request that comes, or comes back."""
            self._told = listener

        def add_request(self, req_index: int, new_req_data: Any) -> None:
            super().add_request(req_index, new_req_data)
            config = self.vllm_config.speculative_config
            self.drafting[req_index] = drafting_for(
                new_req_data, config.declared.reads, self._custom_processors, config.options.needs_prediction
            )
            if self._told is not None:
                self._told(req_index, new_req_data)

    return NotingModelState
