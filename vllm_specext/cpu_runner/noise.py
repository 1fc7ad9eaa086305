"""The random numbers of V2's sampler, bit for bit: murmur3-keyed Gumbel noise and Triton's Philox uniforms.

A draw depends only on (request seed, position, token id), never on the batch, so the same request gives the same tokens
alone or in company, and on CPU the same as under Triton up to the rounding of ``log``.
Counterparts: ``sample/gumbel.py`` of vLLM's V2 runner and ``triton.language.rand``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

UInt32s = npt.NDArray[np.uint32]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating]

# Place of a draft's step among the bits of a seed (`spec_step_seed`).
_STEP_SHIFT = 32
# Keeps the noise of a draft apart from the noise of its verification (`_DRAFT_NOISE_SALT`).
DRAFT_POSITION_SALT = 1 << 30
# Smallest uniform that the rejection test uses (`_TL_RAND_MIN`).
_RAND_MIN = np.float32(4.6566127342e-10)


def _rotl(value: UInt32s, shift: int) -> UInt32s:
    return (value << np.uint32(shift)) | (value >> np.uint32(32 - shift))


def _key(word: UInt32s) -> UInt32s:
    """The part of a murmur3 round that depends on the mixed-in word only."""
    return _rotl(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _mix(state: UInt32s, key: UInt32s) -> UInt32s:
    return _rotl(state ^ key, 13) * np.uint32(5) + np.uint32(0xE6546B64)


@lru_cache(maxsize=4)
def _token_keys(vocab_size: int) -> UInt32s:
    keys = _key(np.arange(vocab_size, dtype=np.uint32))
    keys.flags.writeable = False
    return keys


def _low_word(value: Ints) -> UInt32s:
    return value.astype(np.uint32)


def murmur3(seed: Ints, pos: Ints, vocab_size: int, domain: int = 0) -> UInt32s:
    """Hash every (seed, position) `[R]` with every token id: `[R, V]` uint32."""
    state = np.full(len(seed), domain, np.uint32)
    for word in (_low_word(seed), _low_word(seed >> 32), _low_word(pos)):
        state = _mix(state, _key(word))
    # From here on the arrays are [R, V]: every step is in place, one scratch array.
    hashed = state[:, None] ^ _token_keys(vocab_size)
    scratch = hashed >> np.uint32(19)
    hashed <<= np.uint32(13)
    hashed |= scratch
    hashed *= np.uint32(5)
    hashed += np.uint32(0xE6546B64)
    hashed ^= np.uint32(16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        np.right_shift(hashed, np.uint32(shift), out=scratch)
        hashed ^= scratch
        if factor != 1:
            hashed *= np.uint32(factor)
    return hashed


def _uniform32(hashed: UInt32s) -> npt.NDArray[np.float32]:
    """Map uint32 to the float32 nearest to (x + 0.5) / 2**32; overwrites its argument."""
    uniform = (hashed >> np.uint32(16)).astype(np.float32)
    uniform *= np.float32(1.52587890625e-05)
    hashed &= np.uint32(0xFFFF)
    low = hashed.astype(np.float32)
    low += np.float32(0.5)
    low *= np.float32(2.3283064365386963e-10)
    uniform += low
    return uniform


def _log1p_of_negative(value: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return log(1 - value) for value `[R, V]` in (0, 1): the kernel's series below 0.25, a plain logarithm above."""
    result = np.float32(1.0) - value
    np.maximum(result, np.float32(5.960464477539063e-08), out=result)
    np.log(result, out=result)
    # A quarter of the values: picking them out first is cheaper than a series over all.
    small = np.flatnonzero(value < np.float32(0.25))
    picked = value.reshape(-1)[small]
    series = picked * np.float32(1.0 / 8.0)
    for divisor in (7.0, 6.0, 5.0, 4.0, 3.0, 2.0):
        series += np.float32(1.0 / divisor)
        series *= picked
    series += np.float32(1.0)
    series *= picked
    result.reshape(-1)[small] = np.negative(series, out=series)
    return result


def gumbel(seed: Ints, pos: Ints, vocab_size: int, fp64: bool = False) -> Floats:
    """Gumbel noise `[R, V]` for the requests' seeds and positions `[R]`; float32, or float64 when `fp64`."""
    hashed = murmur3(seed, pos, vocab_size)
    if fp64:
        high = murmur3(seed, pos, vocab_size, domain=0x9E3779B9).astype(np.uint64)
        random53 = ((high << np.uint64(32)) | hashed) >> np.uint64(11)
        uniform = (random53.astype(np.float64) + 0.5) * 1.1102230246251565e-16
        uniform = np.where(uniform == 1.0, uniform - 1.1102230246251565e-16, uniform)
        return -np.log(-np.log(uniform))
    noise = _log1p_of_negative(_uniform32(hashed))
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    return noise


def seed_of_step(seed: Ints, step: npt.NDArray[np.integer[Any]]) -> Ints:
    """The seeds `[R]` of the places in their drafts, from 0 on; one place for all where `step` has no dimension."""
    return seed ^ (step.astype(np.int64) << _STEP_SHIFT)


def philox_uniform(seed: Ints, offset: Ints) -> npt.NDArray[np.float32]:
    """``tl.rand(seed, offset)`` `[L]` for int64 arguments, kept off zero as the rejection test wants it."""
    mask = np.uint64(0xFFFFFFFF)
    wide_seed, wide_offset = seed.astype(np.uint64), offset.astype(np.uint64)
    key0, key1 = wide_seed & mask, wide_seed >> np.uint64(32)
    c0, c1 = wide_offset & mask, wide_offset >> np.uint64(32)
    c2 = c3 = np.zeros_like(c0)
    for _ in range(10):
        high = np.uint64(0xCD9E8D57) * c2
        low = np.uint64(0xD2511F53) * c0
        c0 = (high >> np.uint64(32)) ^ c1 ^ key0
        c2 = (low >> np.uint64(32)) ^ c3 ^ key1
        c1, c3 = high & mask, low & mask
        key0, key1 = (key0 + np.uint64(0x9E3779B9)) & mask, (key1 + np.uint64(0xBB67AE85)) & mask
    signed = c0.astype(np.uint32).view(np.int32)
    folded = np.where(signed < 0, ~signed, signed)
    return np.maximum(folded.astype(np.float32) * np.float32(4.6566127342e-10), _RAND_MIN)
