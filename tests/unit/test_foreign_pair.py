"""What ``vllm-specext pair`` says of two tokenizers, and what it loads for that."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from typer.testing import CliRunner

from vllm_specext.cli import app
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import TARGET
from vllm_specext.methods.foreign_vocab.pair import Comparison, advise, compare
from vllm_specext.methods.foreign_vocab.tokenizers.family import Family
from vllm_specext.methods.foreign_vocab.tokenizers.tokenizer_files import read_files
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import Vocabulary


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "250")
    return CliRunner()


def write_model(folder: Path, merges: Sequence[tuple[str, str]] = (), **config: object) -> Path:
    """A byte-level tokenizer with ``merges``, and an end; the model's ``config``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id for id, token in enumerate([*alphabet, *map("".join, merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def cells(output: str, name: str) -> list[str]:
    """Of the row that begins so."""
    (row,) = [line for line in output.splitlines() if line.startswith(f"│ {name} ")]
    return [cell.strip() for cell in row.strip("│").split("│")[1:]]


def test_the_command_compares_vocabularies_and_text_and_ends_with_what_to_pass_to_vllm(
    wide: CliRunner, tmp_path: Path
) -> None:
    target = write_model(tmp_path / "target", [("a", "b"), ("ab", "ab")])
    drafter = write_model(tmp_path / "drafter", [("a", "b"), ("c", "d")])
    text = tmp_path / "text"
    text.write_text("ababcdab")  # abab c d ab, and ab ab cd ab
    result = wide.invoke(app, ["pair", str(target), str(drafter), "--text", str(text)])
    assert result.exit_code == 0, result.output
    assert cells(result.output, "tokenizer") == ["byte-level BPE", "byte-level BPE"]
    assert cells(result.output, "vocabulary") == ["259", "259"]
    assert cells(result.output, "texts survive") == ["yes", "yes"]
    assert cells(result.output, "bytes per token") == ["2.00", "2.00"]
    assert cells(result.output, "258 shared tokens are") == ["99.6%", "99.6%"]
    assert cells(result.output, "of the text's tokens")[0] == "75.0%"
    prefix, config = result.output.splitlines()[-1].split(" ", 1)
    assert prefix == "--speculative-config"
    best = json.loads(config.strip("'"))
    assert best == {"method": "slem", "model": str(drafter), "num_speculative_tokens": 7}


def test_a_drafter_of_bytes_gets_short_drafts_of_its_text(wide: CliRunner, tmp_path: Path) -> None:
    output = wide.invoke(app, ["pair", str(TARGET), str(write_model(tmp_path / "bytes"))]).output
    target_bytes, drafter_bytes = map(float, cells(output, "bytes per token"))
    assert drafter_bytes == 1
    drafted = str(1 + -int(-6 // target_bytes))
    assert cells(output, "slem")[0] == cells(output, "slrs")[0] == drafted
    assert '"method": "slem"' in output.splitlines()[-1]


def test_equal_vocabularies_are_recognised(wide: CliRunner) -> None:
    output = wide.invoke(app, ["pair", str(TARGET), str(TARGET)]).output
    assert "take method draft-model-tree, or vLLM's own draft_model" in output
    assert cells(output, "of the text's tokens")[0] == "100.0%"


def test_the_command_needs_neither_torch_nor_transformers() -> None:
    script = (
        "import sys; from vllm_specext.cli import app; "
        f"app(['pair', {str(TARGET)!r}, {str(TARGET)!r}], standalone_mode=False); "
        "print(sorted({'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert "draft_model" in output
    assert output.splitlines()[-1] == "[]"


def test_a_tokenizer_that_cannot_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"TARGET is '.*nowhere', whose tokenizer cannot be loaded \(\w+\); it"
    ):
        read_files(str(tmp_path / "nowhere"), "TARGET")
    broken = write_model(tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"DRAFTER is '.*broken', whose tokenizer cannot be loaded"):
        read_files(str(broken), "DRAFTER")


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "cannot be read"), (b"\xff", "cannot be read"), (b"", "empty")]
)
def test_a_text_that_cannot_be_used_is_named(
    wide: CliRunner, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    error = wide.invoke(app, ["pair", str(TARGET), str(TARGET), "--text", str(path)]).exception
    assert isinstance(error, ConfigurationError)
    assert str(path) in str(error)
    assert problem in str(error)


def test_the_models_configuration_decides_on_sizes_and_ends(tmp_path: Path) -> None:
    plain = read_files(str(write_model(tmp_path / "plain")), "TARGET").vocabulary
    assert (len(plain.token_bytes), plain.ends) == (257, {256})
    folder = write_model(tmp_path / "padded", text_config={"vocab_size": 300, "eos_token_id": 7})
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    padded = read_files(str(folder), "TARGET").vocabulary
    assert (len(padded.token_bytes), padded.ends) == (300, {5, 6, 7, 256})
    assert padded.token_bytes[256:] == (None,) * 44


def vocabulary(*texts: bytes) -> Vocabulary:
    by_text = {text: id for id, text in enumerate(texts)}
    bytes_of = dict(enumerate(texts))

    def encode(batch: Sequence[str]) -> list[list[int]]:
        return [[by_text[bytes([b])] for b in text.encode() if bytes([b]) in by_text] for text in batch]

    return Vocabulary(Family(bytes_of, {}, encode), size=len(texts), ends=[])


def found(coverage: float, shared: int = 5) -> Comparison:
    return Comparison(shared, 0.5, 0.5, coverage, target_bytes=4, drafter_bytes=2, same=False)


def test_direct_drafts_are_best_where_the_drafter_has_nearly_every_token() -> None:
    assert [own.method for own in advise(vocabulary(b"a"), found(0.96))] == ["tli", "slem", "slrs"]
    assert [own.method for own in advise(vocabulary(b"a"), found(0.94))] == ["slem", "tli", "slrs"]


def test_methods_that_make_no_sense_say_so() -> None:
    advice = {own.method: own for own in advise(vocabulary(b"a"), found(0, shared=0))}
    assert advice["tli"].num_speculative_tokens is None
    assert advice["slrs"].num_speculative_tokens is None
    assert "use 'slem'" in advice["slrs"].why
    assert advice["slem"].num_speculative_tokens == 4


def test_vocabularies_in_another_order_are_not_the_same() -> None:
    assert compare(vocabulary(b"a", b"b"), vocabulary(b"a", b"b"), "ab").same
    assert not compare(vocabulary(b"a", b"b"), vocabulary(b"b", b"a"), "ab").same
    assert not compare(vocabulary(b"a", b"b"), vocabulary(b"a", b"b", b"c"), "ab").same
