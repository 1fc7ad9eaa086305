"""The bundled models are sound, small, fit each other, and the target's greedy output is mostly not a loop."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

import vllm_specext.demo
from vllm_specext.demo.dflash import shape_for
from vllm_specext.demo.foreign_acceptance import bits_per_byte, byte_lengths, matched
from vllm_specext.demo.foreign_tokens import MARKERS, encode, in_own_markers, token_bytes
from vllm_specext.measure.bundled import PROMPTS
from vllm_specext.measure.loops import is_loop
from vllm_specext.methods.checkpoints import SAFETENSORS
from vllm_specext.methods.griffin import checkpoint as griffin
from vllm_specext.methods.moa import checkpoint as moa
from vllm_specext.served_drafter import served_keys, write
from vllm_specext.training.block import checkpoint as block
from vllm_specext.training.block.layouts import DFLASH
from vllm_specext.training.eagle3 import checkpoint as eagle3
from vllm_specext.training.eagle3.shape import layers_to_read

MODELS = Path(vllm_specext.demo.__file__).parent / "models"
FOREIGN = ("foreign_bpe", "foreign_bytes")


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(MODELS / "target", dtype=torch.float32).eval()


def test_all_bundled_files_together_are_small() -> None:
    sizes = [path.stat().st_size for path in MODELS.rglob("*") if path.is_file()]
    assert 5e6 < sum(sizes) < 40e6
    assert max(sizes) < 16e6


@pytest.mark.parametrize("drafter", ["griffin", "moa", "eagle3", "dflash"])
def test_a_drafter_is_less_than_eight_megabytes(drafter: str) -> None:
    assert 1e6 < sum(path.stat().st_size for path in (MODELS / drafter).iterdir()) < 8e6


@pytest.mark.parametrize("drafter", FOREIGN)
def test_a_drafter_with_its_own_vocabulary_is_less_than_three_megabytes(drafter: str) -> None:
    assert 1e6 < sum(path.stat().st_size for path in (MODELS / drafter).iterdir()) < 2.9e6


def test_the_griffin_drafter_fits_the_target_and_holds_its_embedding(target: LlamaForCausalLM) -> None:
    shape = griffin.read_shape(MODELS / "griffin")
    griffin.check_against_target(shape, target.config.hidden_size, target.config.vocab_size)
    embedding = target.get_input_embeddings().weight
    held = griffin.read_tensors(MODELS / "griffin")["embed_tokens.weight"]
    assert torch.equal(held, embedding.to(held.dtype))


def test_the_moa_drafter_fits_the_target_and_says_for_how_many_layers_it_is(target: LlamaForCausalLM) -> None:
    config = target.config
    shape = moa.read_shape(MODELS / "moa")
    sizes = moa.TargetSizes(
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        layers=config.num_hidden_layers,
        kv_width=2 * config.num_key_value_heads * config.head_dim,
    )
    moa.check_against_target(shape, sizes)
    assert shape.num_target_layers == config.num_hidden_layers
    assert shape.rope_theta == config.rope_parameters["rope_theta"]
    assert shape.layer_self_attention is not None
    assert all(tensor.isfinite().all() for tensor in moa.read_tensors(MODELS / "moa").values())


def test_the_eagle3_drafter_fits_the_target_and_is_as_wide_as_the_griffin_drafter(target: LlamaForCausalLM) -> None:
    drafter = eagle3.read_shape(MODELS / "eagle3", target.config.num_hidden_layers)
    assert (drafter.hidden_size, drafter.vocab_size) == (target.config.hidden_size, target.config.vocab_size)
    assert drafter.layers == layers_to_read(target.config.num_hidden_layers)
    shape = griffin.read_shape(MODELS / "griffin")
    assert (shape.mlp_size, shape.heads, shape.kv_heads) == (drafter.mlp_size, drafter.heads, drafter.kv_heads)


def test_the_dflash_drafter_fits_the_target_and_is_not_much_larger_than_the_eagle3_drafter(
    target: LlamaForCausalLM,
) -> None:
    assert block.read_shape(MODELS / "dflash", DFLASH) == shape_for(target.config)
    tensors = load_file(MODELS / "dflash" / SAFETENSORS)
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    sizes = [sum(x.numel() for x in load_file(MODELS / name / SAFETENSORS).values()) for name in ("dflash", "eagle3")]
    assert 1 <= sizes[0] / sizes[1] < 1.15


SERVED = {"griffin": "griffin", "moa": "moa", "eagle3": "eagle3-tree", "dflash": "dflash-tree"}


@pytest.mark.parametrize(("drafter", "method"), SERVED.items())
def test_a_drafter_names_its_target_and_method_as_its_training_writes_them(
    drafter: str, method: str, tmp_path: Path
) -> None:
    committed = (MODELS / drafter / "config.json").read_text()
    keys = served_keys(method, "../target")
    trained = {key: value for key, value in json.loads(committed).items() if key not in keys}
    assert len(trained) == len(json.loads(committed)) - len(keys)
    (tmp_path / "config.json").write_text(json.dumps(trained))
    write(tmp_path, method, "../target")
    assert (tmp_path / "config.json").read_text() == committed


@torch.no_grad()
def test_greedy_output_is_mostly_not_a_loop(target: LlamaForCausalLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    texts = [row["text"] for row in json.loads(PROMPTS.read_text(encoding="utf-8"))[::3]]
    rows = [tokenizer(text, return_tensors="pt")["input_ids"] for text in texts]
    outputs = [target.generate(row, max_new_tokens=96, do_sample=False)[0, row.shape[1] :].tolist() for row in rows]
    assert sum(map(is_loop, outputs)) <= len(outputs) // 3


def test_the_chat_template_marks_turns_with_single_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What does open do?"}], add_generation_prompt=True, return_dict=False
    )
    text = tokenizer.decode(ids)
    assert text == "<|user|>\nWhat does open do?<|end|>\n<|assistant|>\n"
    assert [tokenizer.convert_tokens_to_ids(mark) in ids for mark in ("<|user|>", "<|end|>", "<|assistant|>")] == [
        True
    ] * 3


@pytest.mark.parametrize("drafter", FOREIGN)
@torch.no_grad()
def test_a_drafter_with_its_own_vocabulary_has_learned_the_text(drafter: str) -> None:
    model = LlamaForCausalLM.from_pretrained(MODELS / drafter, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(MODELS / drafter)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert len(tokenizer) <= model.config.vocab_size
    assert tokenizer.model_max_length == model.config.max_position_embeddings
    assert model.config.eos_token_id == tokenizer.convert_tokens_to_ids(["</s>", "</turn>"])
    text = "".join(row["text"] for row in json.loads(PROMPTS.read_text(encoding="utf-8")))
    ids = torch.tensor(encode(tokenizer, [text])[0][:2048]).view(4, -1)
    lengths = byte_lengths(tokenizer)
    uniform = math.log2(len(tokenizer)) * ids[:, 1:].numel() / float(lengths[ids[:, 1:]].sum())
    assert bits_per_byte(model, ids, lengths) < min(2.8, 0.6 * uniform)


@pytest.mark.parametrize("drafter", FOREIGN)
def test_the_two_vocabularies_share_bytes_but_neither_ids_nor_spellings_of_markers(drafter: str) -> None:
    target, tokenizer = (AutoTokenizer.from_pretrained(MODELS / name) for name in ("target", drafter))
    for theirs, own in MARKERS.items():
        assert target.convert_tokens_to_ids(theirs) != tokenizer.convert_tokens_to_ids(own)
        assert own not in target.get_vocab()
        assert theirs not in tokenizer.get_vocab()
    ordinary, others = set(token_bytes(tokenizer)) - spelled_markers(), set(token_bytes(target)) - spelled_markers()
    assert len(ordinary) == len(tokenizer) - 4
    shared = len(ordinary & others)
    if drafter == "foreign_bytes":
        assert [token_bytes(tokenizer)[byte] for byte in range(256)] == [bytes([byte]) for byte in range(256)]
        assert shared == 256
    else:
        assert 0.5 * len(ordinary) < shared < 0.95 * len(ordinary)


@pytest.mark.parametrize("drafter", FOREIGN)
def test_a_text_survives_a_foreign_tokenizer(drafter: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / drafter)
    text = "def f(x_1):\r\n\treturn  12.5  # h\u00e9llo \u4e16\u754c \U0001f600 e\u0301\u00a0\n\n"
    ids = encode(tokenizer, [text])[0]
    assert b"".join(token_bytes(tokenizer)[token] for token in ids) == text.encode()
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("drafter", FOREIGN)
def test_a_conversation_has_the_same_turns_in_both_spellings(drafter: str) -> None:
    target, tokenizer = (AutoTokenizer.from_pretrained(MODELS / name) for name in ("target", drafter))
    turns = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    theirs, own = (
        t.apply_chat_template(turns, add_generation_prompt=True, tokenize=False) for t in (target, tokenizer)
    )
    assert own == in_own_markers(theirs) != theirs
    ids = tokenizer(own)["input_ids"]
    assert sum(token in tokenizer.all_special_ids for token in ids) == 7


def test_a_target_token_is_accepted_when_all_its_bytes_are_drafted() -> None:
    assert matched(b"return x", [b"return", b" x", b"y"]) == 2
    assert matched(b"retur", [b"return"]) == 0
    assert matched(b"", [b"a"]) == 0


def spelled_markers() -> set[bytes]:
    return {marker.encode() for marker in MARKERS.values()}
