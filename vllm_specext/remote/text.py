"""The text of a session, which both sides have: tokens, and digests by which each knows what the other has."""

import hashlib

import numpy as np

from vllm_specext.remote.protocol import ids_to_bytes


def digest(ids: np.ndarray | list[int]) -> bytes:
    """Eight bytes that tell these tokens from others."""
    return hashlib.sha256(ids_to_bytes(ids)).digest()[:8]
