"""What is added to vLLM's workers (``worker_extension_cls``): each writes what it has kept, so that no state crosses
the border between processes, but names, lengths, a checksum and bits.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.methods.capture.kept_rows import KeptRows
from vllm_specext.training.shards import PackedRows, is_finite, write_shard

WantedRow = tuple[str, str, int, int, tuple[int, ...], bytes]
"""A row to be written: its name, the request, how many of its first positions, the `checksum` of their tokens, the
tokens after them that were never an input (at most the one sampled last), and a bit for each of all these tokens, 1
where the drafter shall learn."""


def checksum(token_ids: Tensor) -> int:
    """A number that tells tokens from others."""
    return zlib.crc32(token_ids.to(torch.int32).numpy().tobytes())


class FeatureWriter:
    """Methods for ``collective_rpc``. The workers that keep nothing answer ``None``."""

    model_runner: Any

    def write_features(self, path: str, rows: Sequence[WantedRow], target: str, source: str) -> list[int] | str | None:
        """Write a shard of ``rows`` to ``path``.

        Returns which ``rows`` are not in it, because not all of their positions were kept or a number is not finite.
        Where none is left, no shard is written. A text says why the file could not be written.
        """
        kept: KeptRows | None = self.model_runner.speculator.kept
        if kept is None:
            return None
        kept.copies.wait()
        packed, missing = pack_kept(kept, rows)
        if packed is not None:
            keys = [key for number, (key, *_) in enumerate(rows) if number not in missing]
            try:
                write_shard(Path(path), packed, keys, target, source)
            except OSError as error:
                return f"{path} cannot be written ({error.strerror or type(error).__name__})."
        return missing

    def forget_features(self, requests: Sequence[str] | None) -> None:
        """What was kept of these requests, or of all, is not wanted any more."""
        kept: KeptRows | None = self.model_runner.speculator.kept
        if kept is None:
            return
        if requests is None:
            kept.clear()
        else:
            kept.forget(_inner_names(kept, requests))


def pack_kept(kept: KeptRows, rows: Sequence[WantedRow]) -> tuple[PackedRows | None, list[int]]:
    """``rows`` as a shard has them, ``None`` where none is left, and the numbers of those that are missing. States that
    were never computed are zeros."""
    names = _inner_names(kept, [request for _, request, *_ in rows])
    found: list[Tensor] = []
    masks: list[Tensor] = []
    ends: list[tuple[int, ...]] = []
    missing: list[int] = []
    for number, (name, (_, _, length, expected, end, bits)) in enumerate(zip(names, rows, strict=True)):
        places = kept.places(name, length) if length else None
        if places is None or checksum(kept.rows.token_ids[places]) != expected or not _finite(kept, places):
            missing.append(number)
            continue
        found.append(F.pad(places, (0, len(end))))  # the states of any place, which are cleared below
        ends.append(end)
        masks.append(torch.from_numpy(np.unpackbits(np.frombuffer(bits, np.uint8), count=length + len(end))))
    if not found:
        return None, missing
    starts = torch.tensor([0, *map(len, found)]).cumsum(0)
    together = torch.cat(found)
    own = kept.rows
    packed = PackedRows(
        own.token_ids[together],
        torch.cat(masks),
        starts,
        own.features[together],
        None if own.aux is None else own.aux[together],
    )
    for stop, end in zip(starts[1:].tolist(), ends, strict=True):
        unread = slice(stop - len(end), stop)
        packed.token_ids[unread] = torch.tensor(end, dtype=torch.int32)
        for states in (packed.features, packed.aux):
            if states is not None:
                states[unread] = 0
    return packed, missing


def _finite(kept: KeptRows, places: Tensor) -> bool:
    """Whether the states there are finite numbers, as a shard wants them."""
    aux = kept.rows.aux
    return is_finite(kept.rows.features[places]) and (aux is None or is_finite(aux[places]))


def _inner_names(kept: KeptRows, requests: Sequence[str]) -> list[str]:
    """The names that the engine gave the ``requests``: it puts a dash and something random after the callers'."""
    known = kept.requests
    inner = {name.rpartition("-")[0]: name for name in known} | {name: name for name in known}
    return [inner.get(request, request) for request in requests]
