"""The target's answers by vLLM, whose hidden states are kept on the way and then written to a shard.

Of the last token that the target sampled there is no state, because it was never an input. It is written all the same,
with zeros: a drafter shall learn how answers end, and reads no state of a token that nothing comes after.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.capture.worker import WantedRow, checksum
from vllm_specext.training.data.answers import Answer, Turn
from vllm_specext.training.data.row import Row

if TYPE_CHECKING:
    from vllm import LLM


@dataclass(frozen=True)
class _Asked:
    request: str
    tokens: int
    """How many of the first tokens were an input: all but the last one sampled."""


class CapturingAnswerer:
    """An ``Answerer`` over an ``LLM`` of `capturing_llm`.

    ``sampling`` are values for ``SamplingParams`` in the place of those of the model's generation config.
    """

    def __init__(self, llm: "LLM", sampling: dict[str, Any] | None = None) -> None:
        self.llm, self.sampling = llm, sampling or {}
        self._asked: dict[str, _Asked] = {}
        """The turns since the last shard, by name."""
        self._texts: dict[tuple[int, ...], str] = {}
        """The turns that none has gone on after, by their prompts and answers."""
        self._replaced: list[str] = []
        """Requests whose states others have too."""
        self._forget(None)  # what warming up left

    def answer(self, turns: Sequence[Turn]) -> list[Answer | None]:
        """One answer for each of ``turns``, in their order; ``None`` where vLLM gave none."""
        prompts = [turn.prompt_token_ids for turn in turns]
        outputs = self._generate(prompts, [turn.max_tokens for turn in turns])
        answers = [self._answered(turn, done) for turn, done in zip(turns, outputs, strict=True)]
        if self._replaced:
            self._forget(self._replaced)
            self._replaced = []
        return answers

    def write(self, path: Path, rows: Sequence[Row], target: str, source: str) -> list[str]:
        """Write shards of ``rows``, to ``path`` and to files beside it whose names begin alike, and forget the turns.

        A row's key is the name of a turn that was asked since the last shard, whose text begins with the row. What is
        not, is given text, which the target reads now. It also reads again what it had no room for. Returns the keys of
        rows that are in no shard even so. ``ConfigurationError`` where a file cannot be written.
        """
        asked = [row for row in rows if row.key in self._asked]
        lost = set(self._write(path, asked, target, source))
        unread = [row for row in rows if row.key in lost or row.key not in self._asked]
        self._asked.clear()
        self._texts.clear()
        missing: list[str] = []
        for number, part in enumerate(self._fitting(unread), start=1):
            self._read(part)
            missing += self._write(path.with_name(f"{path.stem}-{number}{path.suffix}"), part, target, source)
        return missing

    def _answered(self, turn: Turn, done: Any) -> Answer | None:
        """What vLLM generated for ``turn``, whose states are noted."""
        completion = done.outputs[0]
        if completion.finish_reason not in ("stop", "length"):
            return None
        ids = tuple(completion.token_ids)
        asked = _Asked(done.request_id, len(turn.prompt_token_ids) + len(ids) - 1)
        before = self._texts.pop(turn.prompt_token_ids[: turn.known], None)
        if before is not None:
            # This turn has computed all states of the turn before once more.
            old = self._asked[before]
            self._replaced.append(old.request)
            self._asked |= {name: asked for name, one in self._asked.items() if one == old}
        self._asked[turn.name] = asked
        self._texts[(*turn.prompt_token_ids, *ids)] = turn.name
        return Answer(ids, ended=completion.finish_reason == "stop")

    def _fitting(self, rows: Sequence[Row]) -> list[list[Row]]:
        """``rows`` in parts whose states have room."""
        room = self.llm.llm_engine.vllm_config.speculative_config.options.capture_tokens
        parts: list[list[Row]] = []
        for row in rows:
            if not parts or sum(map(len, parts[-1])) + len(row) > room:
                parts.append([])
            parts[-1].append(row)
        return parts

    def _read(self, rows: Sequence[Row]) -> None:
        """Have the target compute the states of ``rows``."""
        outputs = self._generate([row.token_ids.tolist() for row in rows], [1] * len(rows))
        self._asked |= {row.key: _Asked(done.request_id, len(row)) for row, done in zip(rows, outputs, strict=True)}

    def _write(self, path: Path, rows: Sequence[Row], target: str, source: str) -> list[str]:
        """Write a shard, unless no row has all of its states. Returns the keys of rows that have not."""
        arguments = (str(path), [self._wanted(row) for row in rows], target, source)
        (written,) = (each for each in self.llm.collective_rpc("write_features", args=arguments) if each is not None)
        if isinstance(written, str):
            raise ConfigurationError(written)
        return [rows[number].key for number in written]

    def _generate(self, prompts: Sequence[Sequence[int]], most: Sequence[int]) -> list[Any]:
        """vLLM's outputs for ``prompts``, each with at most so many tokens."""
        asked: list[Any] = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return self.llm.generate(asked, [self._params(tokens) for tokens in most], use_tqdm=False) if asked else []

    def _params(self, max_tokens: int) -> Any:
        from vllm import SamplingParams

        values = self.llm.llm_engine.vllm_config.model_config.get_diff_sampling_param() | self.sampling
        text_is_read = bool(values.get("stop"))
        return SamplingParams(**values | {"max_tokens": max_tokens, "detokenize": text_is_read})

    def _wanted(self, row: Row) -> WantedRow:
        asked = self._asked[row.key]
        length = min(len(row), asked.tokens)
        read, end = row.token_ids[:length], tuple(row.token_ids[length:].tolist())
        bits = np.packbits(row.loss_mask).tobytes()
        return row.key, asked.request, length, checksum(torch.from_numpy(read)), end, bits

    def _forget(self, requests: list[str] | None) -> None:
        """These requests' states, or all, are not wanted any more."""
        self.llm.collective_rpc("forget_features", args=(requests,))
