"""The bundled target's tokenizer, and its corpus as arrays of token ids."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from vllm_specext.measure.bundled import TARGET
from vllm_specext.measure.corpus import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, Kind, documents

VOCAB_SIZE = 2048
MAX_MODEL_LEN = 1024


def train_tokenizer(directory: Path, vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE from every third training document and write it to ``directory``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (document.text for document in documents() if not document.held_out)
    tokenizer.train_from_iterator(islice(texts, 0, None, 3), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=MAX_MODEL_LEN,
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
    return fast


def id_dtype(vocab_size: int) -> np.dtype:
    """The smallest type of whole numbers that holds every id of a vocabulary of so many tokens."""
    return np.min_scalar_type(vocab_size - 1)


def encode_corpus(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write ``train.npy``, ``code.npy`` and ``prose.npy`` (the last two held out), ids of `id_dtype` with documents end
    to end.

    Training documents are shuffled with a fixed seed, so that code and prose alternate.
    """
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    corpus = list(documents())
    dtype = id_dtype(len(tokenizer))
    ids = [np.array([*row, end], dtype=dtype) for row in tokenizer([d.text for d in corpus])["input_ids"]]
    held_out: dict[Kind, list[np.ndarray]] = {"code": [], "prose": []}
    training: list[np.ndarray] = []
    for document, row in zip(corpus, ids, strict=True):
        (held_out[document.kind] if document.held_out else training).append(row)
    order = np.random.default_rng(0).permutation(len(training))
    np.save(directory / "train.npy", np.concatenate([training[i] for i in order]))
    for kind, rows in held_out.items():
        np.save(directory / f"{kind}.npy", np.concatenate(rows))
    sizes = {name: int(np.load(directory / f"{name}.npy").size) for name in ("train", "code", "prose")}
    (directory / "sizes.json").write_text(json.dumps(sizes))


def keep_corpus(directory: Path) -> None:
    """The corpus in the bundled target's tokens, as `encode_corpus` writes it, made if it is not there."""
    if not (directory / "sizes.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        encode_corpus(PreTrainedTokenizerFast.from_pretrained(TARGET), directory)
