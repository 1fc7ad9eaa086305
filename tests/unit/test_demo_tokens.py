"""Texts of the demonstration's trainers are kept in ids that hold the whole vocabulary, however large it is."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from vllm_specext.demo import foreign_tokens, tokens, training_text
from vllm_specext.measure.corpus import END_OF_TEXT, Document

SIZES = [50, 2048, 65536, 65537, 128256]


def tokenizer_of(size: int, end: str) -> PreTrainedTokenizerFast:
    """Words ``0``, ``1``, ... are their own ids; the last one is the end of a text."""
    words = {str(id): id for id in range(size - 1)} | {end: size - 1}
    made = Tokenizer(models.WordLevel(words, unk_token="0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=end)


def document(kind: str, held_out: bool, text: str) -> Document:
    names = (Document(kind, str(number), text) for number in range(10_000))
    return next(found for found in names if found.held_out == held_out)


@pytest.mark.parametrize("size", SIZES)
def test_the_corpus_is_kept_in_ids_that_hold_the_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    text = f"0 7 {size - 2}"
    corpus = [document("code", False, text), document("code", True, text), document("prose", True, text)]
    monkeypatch.setattr(tokens, "documents", lambda: iter(corpus))
    tokens.encode_corpus(tokenizer_of(size, END_OF_TEXT), tmp_path)
    for name in ("train", "code", "prose"):
        assert np.load(tmp_path / f"{name}.npy").tolist() == [0, 7, size - 2, size - 1]


@pytest.mark.parametrize("size", SIZES)
def test_a_drafters_text_is_kept_in_ids_that_hold_its_vocabulary(tmp_path: Path, size: int) -> None:
    foreign_tokens.write_ids(tmp_path / "ids.npy", tokenizer_of(size, foreign_tokens.END_OF_TEXT), [f"1 {size - 2}"])
    assert np.load(tmp_path / "ids.npy").tolist() == [1, size - 2, size - 1]


@pytest.mark.parametrize("size", SIZES)
def test_the_targets_own_text_is_kept_in_ids_that_hold_its_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    continued = torch.tensor([[0, 1, size - 1]])
    monkeypatch.setattr(training_text, "greedy_continuations", lambda *_: continued)
    target = nn.Linear(2, 2)
    target.config = SimpleNamespace(vocab_size=size)
    for _ in range(2):  # computed, and read again
        kept: Tensor = training_text._kept_continuations(target, continued[:, :2], 1, tmp_path)
        assert kept.tolist() == continued.tolist()


def test_small_vocabularies_take_few_bytes() -> None:
    assert [tokens.id_dtype(size).itemsize for size in SIZES] == [1, 2, 2, 4, 4]
