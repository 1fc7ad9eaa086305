"""The bundled models are sound, small, fit each other, and the target's greedy output is mostly not a loop."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

import vllm_specext.demo
from vllm_specext.demo.loops import is_loop
from vllm_specext.demo.run import PROMPTS
from vllm_specext.methods.griffin import checkpoint as griffin
from vllm_specext.methods.moa import checkpoint as moa

MODELS = Path(vllm_specext.demo.__file__).parent / "models"


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(MODELS / "target", dtype=torch.float32).eval()


def test_all_bundled_files_together_are_small() -> None:
    sizes = [path.stat().st_size for path in MODELS.rglob("*") if path.is_file()]
    assert 5e6 < sum(sizes) < 24e6
    assert max(sizes) < 16e6


@pytest.mark.parametrize("drafter", ["griffin", "moa"])
def test_a_drafter_is_less_than_eight_megabytes(drafter: str) -> None:
    assert 1e6 < sum(path.stat().st_size for path in (MODELS / drafter).iterdir()) < 8e6


def test_the_griffin_drafter_fits_the_target_and_holds_its_embedding(target: LlamaForCausalLM) -> None:
    shape = griffin.read_shape(MODELS / "griffin")
    griffin.check_against_target(shape, target.config.hidden_size, target.config.vocab_size)
    embedding = target.get_input_embeddings().weight
    assert torch.equal(griffin.read_tensors(MODELS / "griffin")["embed_tokens.weight"].float(), embedding)


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


@torch.no_grad()
def test_greedy_output_is_mostly_not_a_loop(target: LlamaForCausalLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    texts = [row["text"] for row in json.loads(PROMPTS.read_text(encoding="utf-8"))]
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
