"""The tokenizers of the two bundled drafters that do not share the target's vocabulary, and the target's texts in their
ids.

``bpe`` is another byte-level BPE: half as many tokens, learned from other documents, every digit apart, a line break
with the indentation after it, and a word with any one character before it that is not a line break.
``bytes`` is the 256 bytes and nothing else; its ids are the bytes' values.

Both spell the target's markers in their own way and number them in another order, so that none of them can be mapped by
its spelling or by its id.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from vllm_specext.demo.tokens import id_dtype
from vllm_specext.measure import corpus

DrafterKind = Literal["bpe", "bytes"]

MARKERS = {
    corpus.END_OF_TURN: "</turn>",
    corpus.END_OF_TEXT: "</s>",
    corpus.USER: "<human>",
    corpus.ASSISTANT: "<machine>",
}
"""The drafters' spelling of the target's markers, in the order of the drafters' ids."""
END_OF_TEXT, END_OF_TURN = MARKERS[corpus.END_OF_TEXT], MARKERS[corpus.END_OF_TURN]
VOCAB_SIZES: dict[DrafterKind, int] = {"bpe": 1024, "bytes": 264}
"""Rows of the embedding; the last four of ``bytes`` have no token."""
CONTEXTS: dict[DrafterKind, int] = {"bpe": 2048, "bytes": 4096}
WORDS = r"\p{N}|[^\n\p{L}\p{N}]?\p{L}+|[^\s\p{L}\p{N}]+|\n[ \t]*|[^\S\n]+"


def write_tokenizer(kind: DrafterKind, directory: Path) -> PreTrainedTokenizerFast:
    """Make the tokenizer of ``kind`` and write it to ``directory``."""
    tokenizer = learn_bpe() if kind == "bpe" else byte_tokenizer()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=CONTEXTS[kind],
        additional_special_tokens=[marker for marker in MARKERS.values() if marker != END_OF_TEXT],
    )
    fast.chat_template = in_own_markers(corpus.CHAT_TEMPLATE)
    fast.save_pretrained(directory)
    return fast


def learn_bpe() -> Tokenizer:
    """Learn the BPE from every third training document, none of which the target's tokenizer was learned from."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZES["bpe"],
        special_tokens=list(MARKERS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (in_own_markers(document.text) for document in corpus.documents() if not document.held_out)
    tokenizer.train_from_iterator(islice(texts, 1, None, 3), trainer)
    return tokenizer


def byte_tokenizer() -> Tokenizer:
    """A BPE without merges, which every ``AutoTokenizer`` loads."""
    tokenizer = Tokenizer(models.BPE({char: byte for byte, char in bytes_to_unicode().items()}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(MARKERS.values()))
    return tokenizer


def in_own_markers(text: str) -> str:
    for theirs, own in MARKERS.items():
        text = text.replace(theirs, own)
    return text


def own_text(ids: Sequence[int], target: PreTrainedTokenizerFast) -> str:
    """The text of the target's ``ids``, without the pieces of characters at its ends."""
    return in_own_markers(target.decode(ids)).strip("\ufffd")


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    return [row.ids for row in tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> list[bytes]:
    """The bytes that each token adds to a text; a marker, the target's too, has the drafters' spelling of it."""
    byte_of = {char: byte for byte, char in bytes_to_unicode().items()}
    special = set(tokenizer.all_special_tokens)
    spellings = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return [MARKERS.get(s, s).encode() if s in special else bytes(byte_of[char] for char in s) for s in spellings]


def write_ids(path: Path, tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> None:
    """The ``texts`` end to end, an end of text after each, as ids of `id_dtype`."""
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    rows, dtype = encode(tokenizer, list(texts)), id_dtype(len(tokenizer))
    np.save(path, np.concatenate([np.array([*row, end], dtype=dtype) for row in rows]))


def encode_texts(
    tokenizer: PreTrainedTokenizerFast,
    target: PreTrainedTokenizerFast,
    work: Path,
    own: Sequence[torch.Tensor],
    held_out: Sequence[torch.Tensor],
    directory: Path,
) -> None:
    """Write what the target was trained on and ``held out`` of that, ``work``'s files, and the target's continuations
    ``own`` and ``held_out`` as ``train``, ``code``, ``prose``, ``own`` and ``held_out.npy`` to ``directory``."""
    end = target.convert_tokens_to_ids(corpus.END_OF_TEXT)
    for name in ("train", "code", "prose"):
        ids = np.load(work / f"{name}.npy")
        documents = np.split(ids, np.flatnonzero(ids == end) + 1)
        write_ids(
            directory / f"{name}.npy", tokenizer, (own_text(row[:-1].tolist(), target) for row in documents if len(row))
        )
    for name, rows in (("own", own), ("held_out", held_out)):
        write_ids(directory / f"{name}.npy", tokenizer, (own_text(row.tolist(), target) for row in rows))
