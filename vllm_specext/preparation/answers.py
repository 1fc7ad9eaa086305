"""The target's answers by vLLM, whose hidden states are kept on the way and then written to a shard.

Of the last token that the target sampled there is no state, because it was never an input. It is written all the same,
with zeros: a drafter shall learn how answers end, and reads no state of a token that nothing comes after.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.capture.worker import WantedRow, checksum
from vllm_specext.training.data.answers import Answer, Answers, Turn
from vllm_specext.training.data.row import Row
from vllm_specext.training.data.turns import conversation_of

if TYPE_CHECKING:
    from vllm import LLM


@dataclass(frozen=True)
class _Asked:
    request: str
    """What vLLM knows it by."""
    tokens: int
    """How many of the first tokens were an input: all but the last one sampled."""


class CapturingAnswerer:
    """A ``Capturing`` over an ``LLM`` of `capturing_llm`.

    ``sampling`` are values for ``SamplingParams`` in the place of those of the model's generation config.
    """

    def __init__(self, llm: "LLM", sampling: dict[str, Any] | None = None) -> None:
        self.llm, self.sampling = llm, sampling or {}
        self._running: dict[str, Turn] = {}
        """Turns that wait for their answers, by name."""
        self._done: dict[str, Any] = {}
        """vLLM's outputs that nobody has asked for yet, by the request's name."""
        self._asked: dict[str, _Asked] = {}
        """Turns that were answered, by name."""
        self._texts: dict[tuple[int, ...], str] = {}
        """The turns that none has gone on after, by their prompts and answers."""
        self._reads = 0
        """How many rows were read."""
        self._forget(None)  # what warming up left

    def exchange(self, turns: Sequence[Turn]) -> Answers:
        """As ``Answerer`` says. ``None`` where vLLM gave no answer."""
        for turn in turns:
            self._running[turn.name] = turn
            self._begin(turn.name, turn.prompt_token_ids, turn.max_tokens)
        while self._running and not self._done:
            self._step()
        done, self._done = self._done, {}
        unwanted: list[str] = []
        answers = {name: self._answered(self._running.pop(name), output, unwanted) for name, output in done.items()}
        if unwanted:
            self._forget(unwanted)
        return answers

    def abandon(self) -> None:
        """As ``Answerer`` says."""
        self.llm.llm_engine.abort_request(list(self._running))
        self._running, self._done = {}, {}
        self._forget_all()

    def write(self, path: Path, rows: Sequence[Row], over: Collection[str], target: str, source: str) -> list[str]:
        """Write shards of ``rows``, to ``path`` and to files beside it whose names begin alike, and forget the
        conversations with the keys ``over``.

        A row's key is the name of a turn that was answered, whose text begins with the row. What is not, is given text,
        which the target reads now. It also reads again what it had no room for. Returns the keys of rows that are in no
        shard even so. ``ConfigurationError`` where a file cannot be written.
        """
        asked = [row for row in rows if row.key in self._asked]
        lost = {row.key for row in self._write(path, asked, self._asked, target, source)}
        unread = [row for row in rows if row.key in lost or row.key not in self._asked]
        gone = [name for name in self._asked if conversation_of(name) in over]
        self._texts = {ids: name for ids, name in self._texts.items() if conversation_of(name) not in over}
        self._forget([self._asked.pop(name).request for name in gone])
        number, missing = 0, unread
        for alone in (False, True):
            unread, missing = missing, []
            if alone and unread:
                # There was no room beside the states of others, which are computed again when their turn comes.
                while self._running.keys() - self._done.keys():
                    self._step()
                self._forget_all()
            for part in self._in_parts(unread):
                number += 1
                read = self._read(part)
                beside = path.with_name(f"{path.stem}-{number}{path.suffix}")
                missing += self._write(beside, part, read, target, source)
                self._forget([one.request for one in read.values()])
        return [row.key for row in missing]

    def _answered(self, turn: Turn, done: Any, unwanted: list[str]) -> Answer | None:
        """What vLLM generated for ``turn``, whose states are noted. Those of the requests that are added to
        ``unwanted`` nobody needs, or others have them too."""
        completion = done.outputs[0]
        if completion.finish_reason not in ("stop", "length"):
            unwanted.append(turn.name)
            return None
        ids = tuple(completion.token_ids)
        asked = _Asked(turn.name, len(turn.prompt_token_ids) + len(ids) - 1)
        before = self._texts.pop(turn.prompt_token_ids[: turn.known], None)
        if before is not None:
            # This turn has computed all states of the turn before once more.
            old = self._asked[before]
            unwanted.append(old.request)
            self._asked |= {name: asked for name, one in self._asked.items() if one == old}
        self._asked[turn.name] = asked
        self._texts[(*turn.prompt_token_ids, *ids)] = turn.name
        return Answer(ids, ended=completion.finish_reason == "stop")

    def _in_parts(self, rows: Sequence[Row]) -> list[list[Row]]:
        """``rows`` in parts whose states have room, as a rule beside those of turns."""
        room = self.llm.llm_engine.vllm_config.speculative_config.options.capture_tokens // (4 if self._running else 2)
        parts: list[list[Row]] = []
        for row in rows:
            if not parts or sum(map(len, parts[-1])) + len(row) > room:
                parts.append([])
            parts[-1].append(row)
        return parts

    def _read(self, rows: Sequence[Row]) -> dict[str, _Asked]:
        """Have the target compute the states of ``rows``; by their keys, where they are."""
        read = {row.key: _Asked(f"read-{self._reads + number}", len(row)) for number, row in enumerate(rows)}
        self._reads += len(rows)
        for row in rows:
            self._begin(read[row.key].request, row.token_ids.tolist(), 1)
        names = {one.request for one in read.values()}
        while names - self._done.keys():
            self._step()
        for name in names:
            del self._done[name]
        return read

    def _write(
        self, path: Path, rows: Sequence[Row], asked: Mapping[str, _Asked], target: str, source: str
    ) -> list[Row]:
        """Write a shard of the states of what was ``asked``, unless no row has all of them. Returns the rows that have
        not."""
        if not rows:
            return []
        arguments = (str(path), [_wanted(row, asked[row.key]) for row in rows], target, source)
        (written,) = (each for each in self.llm.collective_rpc("write_features", args=arguments) if each is not None)
        if isinstance(written, str):
            raise ConfigurationError(written)
        return [rows[number] for number in written]

    def _begin(self, name: str, prompt: Sequence[int], most: int) -> None:
        """Ask vLLM to go on after ``prompt`` with at most so many tokens."""
        from vllm.inputs import tokens_input

        self.llm.llm_engine.add_request(name, tokens_input(list(prompt)), self._params(most))

    def _step(self) -> None:
        for output in self.llm.llm_engine.step():
            if output.finished:
                self._done[output.request_id] = output

    def _params(self, max_tokens: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        values = self.llm.llm_engine.vllm_config.model_config.get_diff_sampling_param() | self.sampling
        text_is_read = bool(values.get("stop"))
        own = {"max_tokens": max_tokens, "detokenize": text_is_read, "output_kind": RequestOutputKind.FINAL_ONLY}
        return SamplingParams(**values | own)

    def _forget(self, requests: list[str] | None) -> None:
        """These requests' states, or all, are not wanted any more."""
        self.llm.collective_rpc("forget_features", args=(requests,))

    def _forget_all(self) -> None:
        self._asked, self._texts = {}, {}
        self._forget(None)


def _wanted(row: Row, asked: _Asked) -> WantedRow:
    length = min(len(row), asked.tokens)
    read, end = row.token_ids[:length], tuple(row.token_ids[length:].tolist())
    bits = np.packbits(row.loss_mask).tobytes()
    return row.key, asked.request, length, checksum(torch.from_numpy(read)), end, bits
