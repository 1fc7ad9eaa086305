"""Every tensor of an EAGLE checkpoint that vLLM's loader would pass over in silence is a sentence with its name."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.eagle_folders import (
    BIN,
    DRAFTED,
    INDEX,
    LLAMA,
    QWEN,
    VOCABULARY,
    WEIGHTS,
    D,
    Edit,
    add,
    as_bin,
    drop,
    eagle1,
    eagle3,
    edit_config,
    edit_tensors,
    prepared,
    refusal,
    safeailab,
    two_layers,
    write,
)
from vllm_specext.methods.eagle import prepare as module


@pytest.fixture(autouse=True)
def any_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "check_target", lambda method, launch: None)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    safeailab(tmp_path)
    return tmp_path


HALF: dict[str, Any] = {"dtype": torch.float16}


def shard(folder: Path, is_bin: bool = False) -> None:
    """Two files, and an index of safetensors files."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    weight_map = {}
    for part, own in enumerate((names[:5], names[5:])):
        file = f"{'pytorch_model' if is_bin else 'model'}-{part}-of-2.{'bin' if is_bin else 'safetensors'}"
        some = {name: tensors[name] for name in own}
        torch.save(some, folder / file) if is_bin else save_file(some, folder / file)
        weight_map |= dict.fromkeys(own, file)
    if not is_bin:
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("is_bin", [False, True], ids=["safetensors", "bin"])
def test_files_in_parts_are_read(is_bin: bool, checkpoint: Path) -> None:
    shard(checkpoint, is_bin)
    prepared(checkpoint)


def test_what_the_index_does_not_name_is_left_out_as_vllm_does(checkpoint: Path) -> None:
    shard(checkpoint)
    save_file({"fc.weight": torch.zeros(1)}, checkpoint / "other.safetensors")
    prepared(checkpoint)


def both(*edits: Edit) -> Edit:
    def edit(folder: Path) -> None:
        for one in edits:
            one(folder)

    return edit


def set_d2t(index: int, value: int) -> Edit:
    return edit_tensors(lambda tensors: tensors["d2t"].__setitem__(index, value))


def to(name: str, dtype: torch.dtype) -> Edit:
    return edit_tensors(lambda tensors: tensors.update({name: tensors[name].to(dtype)}))


def cut(name: str, *part: slice) -> Edit:
    return edit_tensors(lambda tensors: tensors.update({name: tensors[name][part].contiguous()}))


def lose_a_part(folder: Path) -> None:
    shard(folder)
    (folder / "model-1-of-2.safetensors").unlink()


def index(text: str) -> Edit:
    def edit(folder: Path) -> None:
        (folder / INDEX).write_text(text)

    return edit


def truncate(folder: Path) -> None:
    with (folder / WEIGHTS).open("r+b") as file:
        file.truncate((folder / WEIGHTS).stat().st_size // 2)


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "more.safetensors")


def nest_a_list(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"fc.weight": [torch.zeros(1)]}, folder / BIN)


def pickle_a_function(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"fc.weight": os.getcwd}, folder / BIN)


HALVES = torch.zeros(3, **HALF)
UNFIT: dict[str, tuple[Edit, list[str]]] = {
    "no norm": (drop("norm.weight"), ["lacks tensor norm.weight"]),
    "no fc": (drop("fc.weight"), ["lacks tensor fc.weight"]),
    "no hidden norm": (drop("midlayer.hidden_norm.weight"), ["lacks tensor midlayer.hidden_norm.weight"]),
    "no value projection": (drop("midlayer.self_attn.v_proj.weight"), ["lacks tensor midlayer.self_attn.v_proj"]),
    "no head of its own": (drop("lm_head.weight"), ["lacks tensor lm_head.weight"]),
    "no d2t": (drop("d2t"), ["lacks tensor d2t"]),
    "no biases": (edit_config(attention_bias=True), ["lacks tensors midlayer.self_attn.q_proj.bias"]),
    "no query norms": (edit_config(**QWEN), ["lacks tensors midlayer.self_attn.q_norm.weight"]),
    "no norm before fc": (edit_config(norm_before_fc=True), ["lacks tensor input_norm.weight"]),
    "no norms of fc": (edit_config(fc_norm=True), ["lacks tensors fc_norm.0.weight"]),
    "fewer layers than said": (edit_config(num_hidden_layers=2), ["lacks tensors layers.1.self_attn.q_proj.weight"]),
    "more layers than said": (
        lambda folder: save_file(two_layers(), folder / WEIGHTS),
        ["unexpected tensors layers.1."],
    ),
    "an unknown tensor": (add(embed_projection__weight=HALVES), ["unexpected tensor embed_projection.weight"]),
    "names with a prefix": (
        edit_tensors(lambda tensors: tensors.update({"model.fc.weight": tensors.pop("fc.weight")})),
        ["lacks tensor fc.weight"],
    ),
    "both names of the first layer": (
        add(layers__0__hidden_norm__weight=torch.zeros(D, **HALF)),
        ["unexpected tensor layers.0.hidden_norm.weight"],
    ),
    "a bias of fc": (add(fc__bias=HALVES), ["fc.bias", "vLLM's class does not have"]),
    "biases without their key": (add(midlayer__self_attn__q_proj__bias=HALVES), ["q_proj.bias", "does not have"]),
    "P-EAGLE": (add(mask_hidden=HALVES), ["mask_hidden", "P-EAGLE"]),
    "a norm without its key": (add(input_norm__weight=HALVES), ["input_norm.weight", "norm_before_fc = true"]),
    "norms without their key": (add(fc_norm__0__weight=HALVES), ["fc_norm.0.weight", "fc_norm = true"]),
    "d2t without its key": (
        both(edit_config(draft_vocab_size=...), drop("lm_head.weight")),
        ["tensor d2t", "draft_vocab_size below vocab_size"],
    ),
    "a narrow fc": (cut("fc.weight", slice(None), slice(-2)), ["fc.weight", f"[16, {3 * D - 2}]", f"[16, {3 * D}]"]),
    "fc of four layers": (add(fc__weight=torch.zeros(D, 4 * D)), ["fc.weight", "[16, 64]", "[16, 48]"]),
    "queries of another width": (
        cut("midlayer.self_attn.q_proj.weight", slice(None), slice(D)),
        ["midlayer.self_attn.q_proj.weight", "[16, 16]", "[16, 32]"],
    ),
    "fewer keys": (edit_config(num_key_value_heads=4), ["k_proj.weight", "[8, 32]", "[16, 32]"]),
    "a short head": (cut("lm_head.weight", slice(20)), ["lm_head.weight", "[20, 16]", "[24, 16]"]),
    "an embedding of another vocabulary": (
        add(embed_tokens__weight=torch.zeros(41, D)),
        ["embed_tokens.weight", "[41, 16]", "[40, 16]"],
    ),
    "a short d2t": (cut("d2t", slice(20)), ["d2t", "[20]", "[24]"]),
    "d2t in floats": (to("d2t", torch.float32), ["d2t", "floating-point", "int64"]),
    "t2d in integers": (to("t2d", torch.int64), ["t2d", "int64", "expected bool"]),
    "a short t2d": (cut("t2d", slice(20)), ["t2d", "[20]", "[40]"]),
    "weights in integers": (to("fc.weight", torch.int8), ["fc.weight", "floating-point"]),
    "d2t beyond the vocabulary": (set_d2t(3, VOCABULARY), ["d2t", "draft token 3 to token 43", "0..39"]),
    "d2t before the vocabulary": (set_d2t(0, -1), ["d2t", "draft token 0 to token -1", "0..39"]),
    "d2t of the largest number": (set_d2t(5, 2**63 - 1), ["d2t", "draft token 5"]),
    "d2t twice the same": (set_d2t(1, -1), ["d2t", "2 draft tokens to token 0"]),
    "a truncated file": (truncate, [WEIGHTS, "truncated"]),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), ["neither model.safetensors nor pytorch_model.bin"]),
    "a pipe": (pipe, ["more.safetensors is not a regular file"]),
    "a list in a .bin": (nest_a_list, [BIN, "mapping from names to tensors"]),
    "a function in a .bin": (pickle_a_function, [BIN, "not loaded"]),
    "a lost part": (lose_a_part, ["model-1-of-2.safetensors", INDEX]),
    "an index that is no JSON": (index("{"), [INDEX, "JSON"]),
    "an index of numbers": (index('{"weight_map": {"fc.weight": 1}}'), [INDEX, "weight_map"]),
    "a tensor in two files": (
        lambda folder: save_file({"fc.weight": torch.zeros(1)}, folder / "a.safetensors"),
        ["tensor fc.weight is in a.safetensors and model.safetensors"],
    ),
    "Mistral's files": (
        lambda folder: save_file({"x": torch.zeros(1)}, folder / "consolidated.safetensors"),
        ["consolidated.safetensors", "Mistral's own format"],
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_vllms_loader_would_pass_over_is_refused(case: str, checkpoint: Path) -> None:
    edit, fragments = UNFIT[case]
    edit(checkpoint)
    message = refusal(checkpoint)
    assert [fragment for fragment in fragments if fragment not in message] == [], message


UNFIT_EAGLE_1: dict[str, tuple[Edit, list[str]]] = {
    "a bias of fc": (add(fc__bias=HALVES), ["fc.bias", "vLLM's class does not have", "method 'griffin'"]),
    "a head": (add(lm_head__weight=HALVES), ["unexpected tensor lm_head.weight"]),
    "an input norm": (add(layers__0__input_layernorm__weight=HALVES), ["unexpected", "input_layernorm"]),
    "biases that the file lacks": (edit_config(bias=True), ["lacks tensors layers.0.self_attn.q_proj.bias"]),
    "an EAGLE-3 drafter": (lambda folder: save_file(eagle3("layers.0."), folder / WEIGHTS), ["tensor d2t"]),
}


@pytest.mark.parametrize("case", UNFIT_EAGLE_1)
def test_eagle_1_with_other_tensors_is_refused(case: str, tmp_path: Path) -> None:
    write(tmp_path, LLAMA, eagle1())
    edit, fragments = UNFIT_EAGLE_1[case]
    edit(tmp_path)
    message = refusal(tmp_path, "eagle-tree")
    assert [fragment for fragment in fragments if fragment not in message] == [], message


def test_an_eagle_1_drafter_is_no_eagle_3_drafter(tmp_path: Path) -> None:
    assert "lacks tensors" in refusal(write(tmp_path, LLAMA, eagle1()))


def test_a_tree_needs_as_many_candidates_as_there_are_tokens(checkpoint: Path) -> None:
    prepared(checkpoint, tree_top_k=DRAFTED)
    message = refusal(checkpoint, tree_top_k=DRAFTED + 1, num_speculative_tokens=30)
    assert f"'tree_top_k' is {DRAFTED + 1}" in message
    assert f"{DRAFTED} tokens" in message


@pytest.mark.parametrize("is_bin", [False, True], ids=["safetensors", "bin"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_refused_by_name(is_bin: bool, value: float, checkpoint: Path) -> None:
    edit_tensors(lambda tensors: tensors["fc.weight"][1].fill_(value))(checkpoint)
    if is_bin:
        as_bin(checkpoint)
    assert "tensor fc.weight holds NaN or an infinity" in refusal(checkpoint)
