"""A drafter that has read nothing of the target: a small language model with a tokenizer of its own, whose text becomes
the target's tokens (as in SLEM). Nothing but token ids crosses the link."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.protocol import Sampling

LENGTH = 6
"""Tokens of its own that it drafts."""


class Independent:
    def __init__(self, folder: Path, target: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._own: Any = AutoTokenizer.from_pretrained(folder)
        self._targets: Any = AutoTokenizer.from_pretrained(target)

    def take(self, first: int, keys: Tensor, values: Tensor) -> int:
        return 0  # it knows nothing of rows

    def tree(self, text: list[int], max_nodes: int) -> Drafted:
        return Drafted.chain(self._continued(text, LENGTH)[:max_nodes])

    def next_token(self, text: list[int], sampling: Sampling) -> int:
        for length in (2, LENGTH, 2 * LENGTH):
            if found := self._continued(text, length):
                return found[0]
        return text[-1]

    @torch.inference_mode()
    def _continued(self, text: list[int], length: int) -> list[int]:
        """The target's tokens of what it would write next; none where they do not go on with the text's."""
        said = self._targets.decode(text)
        ids = self._own(said, return_tensors="pt")["input_ids"][:, -500:]
        whole = self._model.generate(ids, max_new_tokens=length, do_sample=False)
        more = said + self._own.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
        made: list[int] = self._targets(more)["input_ids"]
        return made[len(text) :] if made[: len(text)] == text else []
