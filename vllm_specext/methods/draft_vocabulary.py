"""The target's tokens that a drafter scores, where it does not score all: from a file that ``vllm-specext vocab``
wrote, or from ``d2t`` in the drafter's checkpoint, as EAGLE-3's have it.

The fewer tokens are scored, the less of the target's output layer is read and multiplied for a drafted token. The
others are never drafted. Verification scores them all, so that the output stays what it is.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import DRAFT_VOCABULARY, load_tensor, read_object, tensor_headers
from vllm_specext.methods.token_counts import IDS, VOCAB_SIZE

SIZE, FILE = (f"speculative-config key {key!r}" for key in ("draft_vocab_size", "draft_vocab_file"))


def read_file(path: Path, vocab_size: int, key: str = FILE) -> list[int]:
    """The ids in a file of ``vllm-specext vocab``, in its order, for a target with ``vocab_size`` tokens.

    Raises ``ConfigurationError``, which names the file and the ``key``.
    """
    if not path.exists():
        raise ConfigurationError(f"{key} is {str(path)!r}, which is no file.")
    content = read_object(path)
    own, ids = content.get(VOCAB_SIZE), content.get(IDS)
    if own != vocab_size:
        raise ConfigurationError(
            f"{path}: {VOCAB_SIZE} is {own!r}, but the target's is {vocab_size}; vllm-specext vocab writes a file for "
            "each target."
        )
    if not isinstance(ids, list) or not ids or not all(type(id) is int for id in ids):
        raise ConfigurationError(f"{path}: {IDS} must be a list of one integer or more.")
    if outside := next((id for id in ids if not 0 <= id < vocab_size), None):
        raise ConfigurationError(f"{path}: {IDS} has {outside}; the target's are 0..{vocab_size - 1}.")
    if len(set(ids)) < len(ids):
        (often, times), *_ = Counter(ids).most_common(1)
        raise ConfigurationError(f"{path}: {IDS} has {often} {times} times; every id may stand once.")
    return ids


def read_checkpoint(path: Path, vocab_size: int) -> list[int] | None:
    """The ids that ``d2t`` of the weights in ``path`` stands for, for a target with ``vocab_size`` tokens; ``None``
    where there is no ``d2t``.

    Raises ``ConfigurationError``, which names the file.
    """
    if (header := tensor_headers(path).get("d2t")) is None:
        return None
    if header.dtype != DRAFT_VOCABULARY["d2t"]:
        raise ConfigurationError(f"{path}: tensor d2t has the type {header.dtype}; expected {DRAFT_VOCABULARY['d2t']}.")
    if len(header.shape) != 1 or not 1 <= header.shape[0] <= vocab_size:
        raise ConfigurationError(
            f"{path}: tensor d2t has shape {list(header.shape)}; expected one dimension of 1..{vocab_size}, the tokens "
            "of the target."
        )
    return tokens_of(path, vocab_size)


def tokens_of(path: Path, vocab_size: int) -> list[int]:
    """The target's token that each draft token is: ``d2t`` holds what has to be added to its number.

    Every draft token has to be another one of the target's; on a GPU an index out of range ends the process.
    """
    offsets = load_tensor(path, "d2t")
    tokens = torch.arange(len(offsets)) + offsets
    outside = ((tokens < 0) | (tokens >= vocab_size)).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        raise ConfigurationError(
            f"{path}: tensor d2t maps draft token {first} to token {int(tokens[first])}; the target's are "
            f"0..{vocab_size - 1}."
        )
    ordered, counts = tokens.unique(return_counts=True)
    if len(ordered) < len(tokens):
        twice = int(ordered[counts > 1][0])
        raise ConfigurationError(
            f"{path}: tensor d2t maps {int(counts.max())} draft tokens to token {twice}; every one needs its own."
        )
    found: list[int] = tokens.tolist()
    return found


def choose(ids: Sequence[int], special: Collection[int], size: int | None) -> tuple[int, ...]:
    """The ``special`` ids and the first of the other ``ids``, ``size`` in all or every one, ascending.

    Raises ``ConfigurationError`` where there are not so many, or more that are special.
    """
    others = [id for id in ids if id not in special]
    most = len(special) + len(others)
    if size is None:
        size = most
    if not len(special) <= size <= most:
        raise ConfigurationError(
            f"{SIZE} is {size}; allowed are {len(special)}, the target's special tokens, to {most}, with all tokens of "
            "draft_vocab_file."
        )
    return tuple(sorted([*special, *others[: size - len(special)]]))
