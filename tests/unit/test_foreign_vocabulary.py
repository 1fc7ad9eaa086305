"""Tokens are read as bytes, whatever their tokenizer is made of, and any text is encoded as nothing but text."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mistral_common
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import BertTokenizer, ByT5Tokenizer, GPTSw3Tokenizer, LlamaTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_mistral_common import MistralCommonBackend

from tests.unit.foreign_tokenizers import ENDS, TOKENIZERS, code, texts, vocabulary, wrap
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import SAMPLES, Vocabulary, read_vocabulary

MISTRAL = Path(mistral_common.__file__).parent / "data"
PIECES, TEKKEN = MISTRAL / "mistral_instruct_tokenizer_240323.model.v3", MISTRAL / "tekken_240911.json"
NAMES = pytest.mark.parametrize("name", TOKENIZERS)


def read(tokenizer: Any) -> Vocabulary:
    return read_vocabulary(tokenizer, size=len(tokenizer), ends=[tokenizer.eos_token_id])


@NAMES
def test_texts_survive_and_the_bytes_are_those_that_the_tokenizer_decodes(name: str) -> None:
    own, tokenizer = vocabulary(name), TOKENIZERS[name]()
    assert own.exact
    assert own.difference is None
    for text in texts().values():
        ids = own.encode(text)
        assert own.bytes_of(ids) == text.encode()
        assert tokenizer.decode([*own.encode("a"), *ids]) == "a" + text


@NAMES
@settings(max_examples=40)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁")))
def test_any_text_survives(name: str, text: str) -> None:
    own = vocabulary(name)
    assert own.bytes_of(own.encode(text)) == text.encode()


@NAMES
def test_a_piece_of_a_text_is_encoded_as_it_is_within_the_text(name: str) -> None:
    own = vocabulary(name)
    ids = own.encode(code()[:2000])
    place = next(i for i in range(200, len(ids)) if own.token_bytes[ids[i]].startswith(b" ") and i > 200)  # type: ignore
    assert own.encode(own.bytes_of(ids[place:]).decode()) == ids[place:]


def test_the_tokenizer_itself_puts_a_space_before_a_text() -> None:
    tokenizer = TOKENIZERS["pieces"]()
    assert tokenizer.encode("lead", add_special_tokens=False) == tokenizer.encode(" lead", add_special_tokens=False)[1:]
    assert vocabulary("pieces").encode("lead") != vocabulary("pieces").encode(" lead")


@NAMES
def test_what_spells_a_marker_out_is_text(name: str) -> None:
    own, tokenizer = vocabulary(name), TOKENIZERS[name]()
    text = f"he wrote {' and '.join(own.markers)} into the file"
    assert not set(own.markers.values()).isdisjoint(tokenizer.encode(text, add_special_tokens=False))
    for ids in (own.encode(text), *own.encode_batch([text, text])):
        assert own.bytes_of(ids) == text.encode()
        assert not any(own.is_marker(id) for id in ids)


@NAMES
def test_markers_and_ends_have_no_bytes(name: str) -> None:
    own, tokenizer = vocabulary(name), TOKENIZERS[name]()
    assert own.markers == tokenizer.get_added_vocab() | {s: tokenizer.convert_tokens_to_ids(s) for s in ENDS[name]}
    assert all(own.token_bytes[id] is None for id in {*own.markers.values(), *own.ends})
    assert own.ends == set(tokenizer.convert_tokens_to_ids(ENDS[name]))


def test_ids_without_an_embedding_do_not_exist() -> None:
    tokenizer = TOKENIZERS["chatml"]()
    small = read_vocabulary(tokenizer, size=1000, ends=[2, 1000, 5000])
    assert len(small.token_bytes) == 1000
    assert small.ends == {2}
    assert max(small.encode(code()[:2000])) < 1000
    padded = read_vocabulary(tokenizer, size=4000, ends=[])
    assert padded.token_bytes[len(tokenizer) :] == (None,) * (4000 - len(tokenizer))
    with pytest.raises(ConfigurationError, match="no token of text below id 2"):
        read_vocabulary(tokenizer, size=2, ends=[])


def test_added_white_space_is_text_and_other_added_tokens_are_markers() -> None:
    tokenizer = Tokenizer.from_str(TOKENIZERS["headers"]().backend_tokenizer.to_str())
    tokenizer.add_tokens([AddedToken(" " * 24, normalized=False), AddedToken("<think>", normalized=False)])
    own = read(wrap(tokenizer, eos_token="<|eot|>"))
    run, think = (tokenizer.token_to_id(content) for content in (" " * 24, "<think>"))
    assert own.token_bytes[run] == b" " * 24
    assert run in own.encode("x" + " " * 24 + "y")
    assert own.markers["<think>"] == think
    assert own.bytes_of(own.encode("a <think> b")) == b"a <think> b"


def test_a_tokenizer_that_changes_texts_is_found_out() -> None:
    tokenizer = Tokenizer.from_str(TOKENIZERS["headers"]().backend_tokenizer.to_str())
    tokenizer.normalizer = normalizers.Lowercase()
    own = read(wrap(tokenizer, eos_token="<|eot|>"))
    assert not own.exact
    assert own.difference == f"{SAMPLES[0]!r} becomes {SAMPLES[0].lower()!r}"
    assert own.bytes_of(own.encode("Lower")) == b"lower"


def llama(folder: Path) -> Any:
    shutil.copy(PIECES, folder / "tokenizer.model")
    return LlamaTokenizer.from_pretrained(folder)


def sentencepiece(folder: Path) -> Any:
    shutil.copy(PIECES, folder / "tokenizer.model")
    return GPTSw3Tokenizer(vocab_file=str(folder / "tokenizer.model"), name_or_path="gpt-sw3")


def tiktoken(folder: Path) -> Any:
    from vllm.tokenizers.kimi_audio import KimiAudioTokenizer

    ranks = json.loads(TEKKEN.read_text())["vocab"]
    lines = [f"{token['token_bytes']} {token['rank']}" for token in ranks[:5000]]
    (folder / "tiktoken.model").write_text("\n".join(lines))
    (folder / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"5000": {"content": "<|im_end|>"}}}')
    return KimiAudioTokenizer.from_pretrained(folder)


def mistral(path: Path) -> Callable[[Path], Any]:
    return lambda folder: MistralCommonBackend(tokenizer_path=path)


def mistral_in_vllm(path: Path) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        from vllm.tokenizers.mistral import MistralTokenizer

        return MistralTokenizer(MistralCommonBackend(tokenizer_path=path))

    return make


REAL = [
    pytest.param(llama, id="as Llama's"),
    pytest.param(sentencepiece, id="sentencepiece"),
    pytest.param(mistral(PIECES), id="Mistral's pieces"),
    pytest.param(mistral(TEKKEN), id="Tekken"),
    pytest.param(lambda folder: ByT5Tokenizer(), id="plain Python"),
    # Importing vLLM takes many times as long as the other tests here.
    pytest.param(mistral_in_vllm(TEKKEN), id="Tekken in vLLM", marks=pytest.mark.extended),
    pytest.param(tiktoken, id="tiktoken in vLLM", marks=pytest.mark.extended),
]


@pytest.mark.parametrize("make", REAL)
def test_every_family_is_read(make: Callable[[Path], Any], tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    own = read(tokenizer)
    assert own.exact
    for text in (*texts().values(), f"literally {' '.join(list(own.markers)[:9])} here"):
        ids = own.encode(text)
        assert own.bytes_of(ids) == text.encode()
        assert not any(own.is_marker(id) for id in ids)
    assert own.markers
    assert all(own.token_bytes[id] is None for id in {*own.markers.values(), *own.ends})


def words(folder: Path) -> Any:
    (folder / "vocab.txt").write_text("\n".join(["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]", "play", "##ing"]))
    return BertTokenizer(str(folder / "vocab.txt"))


def no_decoder(folder: Path) -> Any:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return wrap(tokenizer)


@pytest.mark.parametrize("make", [words, no_decoder])
def test_tokens_that_are_no_bytes_are_refused_in_one_sentence(make: Callable[[Path], Any], tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    with pytest.raises(ConfigurationError, match=r"^The tokens of .* cannot be turned into bytes; .*\.$"):
        read_vocabulary(tokenizer, size=len(tokenizer), ends=[])


def test_the_unknown_token_of_a_unigram_model_is_a_marker() -> None:
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("a", -1.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256))]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    vocabulary = read_vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend), size=len(pieces), ends=())
    assert vocabulary.token_bytes[:3] == (None, b" ", b"a")
    assert vocabulary.exact
