"""Which of the target's tokens a drafter scores: files and checkpoints that say so, what is refused, and the rows of
the target's output layer that are left."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from tests.unit.test_declaration import configuration
from vllm_specext.engine.drafting import draft_head as module
from vllm_specext.engine.drafting.draft_head import DraftHead, draft_head
from vllm_specext.engine.report import configured
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, GRIFFIN_TREE, MOA_TREE, SLEM, SWIFT
from vllm_specext.methods.draft_vocabulary import choose, read_checkpoint, read_file
from vllm_specext.methods.griffin import checkpoint as griffin
from vllm_specext.methods.moa import checkpoint as moa

VOCABULARY = 2048
SPECIAL = (0, 1, 2, 3)
"""Of the bundled target."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ids.json"
    path.write_text(json.dumps({"vocab_size": VOCABULARY, "ids": list(range(100, 400))}))
    return path


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        call()
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def with_d2t(folder: Path, method: str, d2t: Tensor) -> dict[str, Any]:
    """Keys for a copy of the bundled drafter with this tensor."""
    config = {"griffin": GRIFFIN_CHAIN, "moa": MOA_TREE}[method]
    shutil.copytree(config["model"], folder / method)
    path = folder / method / "model.safetensors"
    save_file(load_file(path) | {"d2t": d2t, "t2d": torch.zeros(VOCABULARY, dtype=torch.bool)}, path)
    return config | {"model": str(folder / method)}


# The choice.


def test_special_tokens_are_always_in_and_the_first_others_up_to_the_size() -> None:
    ids = [7, 5, 1, 9, 8]
    assert choose(ids, {1, 2}, None) == (1, 2, 5, 7, 8, 9)
    assert choose(ids, {1, 2}, 4) == (1, 2, 5, 7)
    assert choose(ids, {1, 2}, 2) == (1, 2)


@pytest.mark.parametrize("size", [1, 7])
def test_a_size_that_cannot_be_chosen_is_refused_with_what_can(size: int) -> None:
    message = refusal(lambda: choose([7, 5, 1, 9, 8], {1, 2}, size))
    assert f"'draft_vocab_size' is {size}" in message
    assert "allowed are 2" in message
    assert "to 6" in message


@pytest.mark.parametrize("keys", [GRIFFIN_CHAIN, GRIFFIN_TREE, MOA_TREE], ids=["chain", "tree", "moa"])
def test_a_launch_knows_the_tokens_and_says_how_many_there_are(keys: dict[str, Any], file: Path) -> None:
    config = configuration(keys | {"draft_vocab_file": str(file), "draft_vocab_size": 64})
    assert config.speculative_config.draft_vocabulary == (*SPECIAL, *range(100, 160))
    assert dict(configured(config))["Drafted from"] == "64 of the target's 2048 tokens"


def test_without_the_keys_all_tokens_are_scored() -> None:
    config = configuration(GRIFFIN_CHAIN)
    assert config.speculative_config.draft_vocabulary is None
    assert "Drafted from" not in dict(configured(config))


@pytest.mark.parametrize("method", ["griffin", "moa"])
def test_d2t_in_the_checkpoint_is_read_and_is_no_weight(tmp_path: Path, method: str) -> None:
    ids = torch.arange(10, 2000, 7)
    keys = with_d2t(tmp_path, method, ids - torch.arange(len(ids)))
    config = configuration(keys)
    assert config.speculative_config.draft_vocabulary == tuple(sorted({*SPECIAL, *ids.tolist()}))
    read = {"griffin": griffin, "moa": moa}[method].read_tensors(Path(keys["model"]))
    assert not {"d2t", "t2d"} & read.keys()


# Refusals.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[", ["is not valid JSON"]),
        ("[1, 2]", ["JSON object"]),
        ({"ids": [1]}, ["vocab_size is None", "2048"]),
        ({"vocab_size": 2049, "ids": [1]}, ["vocab_size is 2049", "2048"]),
        ({"vocab_size": 2048}, ["ids must be a list"]),
        ({"vocab_size": 2048, "ids": []}, ["ids must be a list"]),
        ({"vocab_size": 2048, "ids": [1, 2.0]}, ["ids must be a list"]),
        ({"vocab_size": 2048, "ids": [1, True]}, ["ids must be a list"]),
        ({"vocab_size": 2048, "ids": [1, 2048]}, ["ids has 2048", "0..2047"]),
        ({"vocab_size": 2048, "ids": [1, -1]}, ["ids has -1", "0..2047"]),
        ({"vocab_size": 2048, "ids": [5, 4, 5]}, ["ids has 5 2 times"]),
    ],
)
def test_a_file_that_is_no_list_of_the_targets_ids_is_refused(tmp_path: Path, content: Any, words: list[str]) -> None:
    path = tmp_path / "ids.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    message = refusal(lambda: read_file(path, VOCABULARY))
    assert str(path) in message
    assert all(word in message for word in words), message


def test_a_file_too_large_to_be_one_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    with path.open("wb") as file:
        file.truncate(2**24 + 1)
    assert "at most 16777216 are allowed" in refusal(lambda: read_file(path, VOCABULARY))


@pytest.mark.parametrize(
    ("d2t", "words"),
    [
        (torch.zeros(3), ["d2t has the type floating-point", "int64"]),
        (torch.zeros(3, 2, dtype=torch.int64), ["d2t has shape [3, 2]", "one dimension"]),
        (torch.zeros(VOCABULARY + 1, dtype=torch.int64), ["d2t has shape [2049]", "1..2048"]),
        (torch.tensor([0, 2047]), ["draft token 1 to token 2048", "0..2047"]),
        (torch.tensor([0, -2]), ["draft token 1 to token -1"]),
        (torch.tensor([1, 0]), ["2 draft tokens to token 1"]),
    ],
)
def test_a_d2t_that_does_not_name_tokens_of_the_target_is_refused(
    tmp_path: Path, d2t: Tensor, words: list[str]
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"d2t": d2t}, path)
    message = refusal(lambda: read_checkpoint(path, VOCABULARY))
    assert str(path) in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"draft_vocab_size": 64}, ["'draft_vocab_size' is 64", "no tensor d2t", "draft_vocab_file", "vocab writes"]),
        ({"draft_vocab_size": 4096}, ["'draft_vocab_size' is 4096", "at most 2048"]),
        ({"draft_vocab_size": 0}, ["'draft_vocab_size' is 0"]),
        ({"draft_vocab_file": ""}, ["'draft_vocab_file' is ''"]),
        ({"draft_vocab_file": "./gone"}, ["'draft_vocab_file' is 'gone'", "no file"]),
        ({"draft_vocab_file": "FILE", "draft_vocab_size": 3}, ["'draft_vocab_size' is 3", "4, the target's special"]),
        ({"draft_vocab_file": "FILE", "draft_vocab_size": 305}, ["'draft_vocab_size' is 305", "to 304"]),
        ({"draft_vocab_file": "FILE", "draft_vocab_size": 9}, ["'tree_top_k' is 10", "scores 9 tokens", "at most 9"]),
    ],
)
def test_wrong_keys_are_refused_in_a_sentence(file: Path, own: dict[str, Any], words: list[str]) -> None:
    own = {key: str(file) if value == "FILE" else value for key, value in own.items()}
    keys = {key: value for key, value in GRIFFIN_TREE.items() if "tree" not in key}
    message = refusal(lambda: configuration(keys | own))
    assert all(word in message for word in words), message


def test_keys_beside_a_checkpoints_own_choice_are_refused(tmp_path: Path, file: Path) -> None:
    keys = with_d2t(tmp_path, "griffin", torch.arange(60))
    message = refusal(lambda: configuration(keys | {"draft_vocab_size": 50}))
    assert "'draft_vocab_size' is 50" in message
    assert "60 tokens" in message
    assert configuration(keys | {"draft_vocab_size": 60}).speculative_config.draft_vocabulary is not None
    message = refusal(lambda: configuration(keys | {"draft_vocab_file": str(file)}))
    assert "'draft_vocab_file'" in message
    assert "d2t" in message


@pytest.mark.parametrize("keys", [SWIFT, SLEM, GRIFFIN_TREE | {"method": "eagle3-tree"}])
def test_other_methods_do_not_have_the_keys(keys: dict[str, Any], file: Path) -> None:
    message = refusal(lambda: configuration(keys | {"draft_vocab_file": str(file)}))
    assert f"'draft_vocab_file' is unknown for method '{keys['method']}'" in message


# The output layer's rows.


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A target's output layer of 200 tokens, which are padded, on one rank."""
    monkeypatch.setattr(module, "ParallelLMHead", partial(ParallelLMHead, disable_tp=True))
    with set_current_vllm_config(VllmConfig()):
        made = ParallelLMHead(200, 32, params_dtype=torch.float32, disable_tp=True)
        made.weight_loader(made.weight, torch.randn(200, 32, generator=torch.Generator().manual_seed(0)))
        made.quant_method.process_weights_after_loading(made)
        yield made


IDS = (0, 3, 64, 65, 130, 199)


def scoring(vocabulary: tuple[int, ...] | None, in_float8: str | None = None) -> Any:
    """The configuration of a drafter that scores these tokens."""
    options = SimpleNamespace(in_float8={"draft_lm_head_quantization": in_float8} if in_float8 else {})
    return SimpleNamespace(draft_vocabulary=vocabulary, options=options)


@pytest.mark.parametrize("how", [{}, {"scale": 0.25}, {"soft_cap": 3.0}, {"scale": 2.0, "soft_cap": 5.0}])
def test_the_rows_that_are_left_score_as_the_whole_layer_does(head: Any, how: dict[str, float]) -> None:
    target = SimpleNamespace(logits_processor=LogitsProcessor(200, **how))
    features = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    whole, few = draft_head(head, target, scoring(None)), draft_head(head, target, scoring(IDS))
    assert whole(features).shape == (5, 200)
    assert few(features).shape == (5, len(IDS))
    torch.testing.assert_close(few(features), whole(features)[:, list(IDS)])
    assert not torch.allclose(few(features), whole(features)[:, : len(IDS)])  # other rows do not
    assert target.logits_processor.org_vocab_size == 200  # the target goes on with its own


@pytest.mark.parametrize("vocabulary", [None, IDS])
def test_a_copy_in_float8_scores_nearly_as_the_layer_does(head: Any, vocabulary: tuple[int, ...] | None) -> None:
    target = SimpleNamespace(logits_processor=LogitsProcessor(200, scale=0.5))
    features = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    before = head.weight.clone()
    few = draft_head(head, target, scoring(vocabulary, "fp8"))
    assert few.head.weight.dtype == torch.float8_e4m3fn
    assert torch.equal(head.weight, before)  # the target goes on with its own
    expected = draft_head(head, target, scoring(vocabulary))(features)
    assert 0 < (few(features) - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("quantization", [None, "fp8"])
@pytest.mark.parametrize("vocabulary", [None, IDS])
def test_rows_that_are_loaded_anew_are_copied_in_place(
    head: Any, vocabulary: tuple[int, ...] | None, quantization: str | None
) -> None:
    target = SimpleNamespace(logits_processor=LogitsProcessor(200))
    features = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    copied = draft_head(head, target, scoring(vocabulary, quantization))
    places, older = [weight.data_ptr() for weight in copied.parameters()], copied(features)
    head.weight.data.copy_(torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(2)))
    head.quant_method.process_weights_after_loading(head)  # a CPU's product has a layout of its own
    whole = vocabulary is None and quantization is None
    assert torch.equal(copied(features), older) != whole
    for part in copied.modules():
        if hasattr(part, "renew"):
            part.renew()
    assert torch.equal(copied(features), draft_head(head, target, scoring(vocabulary, quantization))(features))
    assert [weight.data_ptr() for weight in copied.parameters()] == places


def test_places_become_the_targets_ids(head: Any) -> None:
    target = SimpleNamespace(logits_processor=LogitsProcessor(200))
    places = torch.tensor([[5, 0], [2, 4]])
    assert draft_head(head, target, scoring(IDS)).target_ids(places).tolist() == [[199, 0], [64, 130]]
    assert draft_head(head, target, scoring(None)).target_ids(places) is places


def test_the_ranks_shares_add_up_to_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first three ranks have 64 rows each, and the last one eight and padding."""
    weight = torch.randn(256, 4)
    weight[200:] = 0
    monkeypatch.setattr(module, "tensor_model_parallel_all_reduce", lambda share: share)
    plain = module.UnquantizedEmbeddingMethod()
    shares = []
    for rank in range(4):
        first, end = 64 * rank, min(64 * rank + 64, 200)
        shard = SimpleNamespace(org_vocab_start_index=first, org_vocab_end_index=end, num_org_elements=end - first)
        own = weight[first : first + 64]
        share = SimpleNamespace(weight=own, shard_indices=shard, quant_method=plain, tp_size=4)
        shares.append(module._rows(share, torch.tensor(IDS)))
    assert torch.equal(sum(shares, torch.zeros(len(IDS), 4)), weight[list(IDS)])


def test_a_quantised_output_layer_is_refused(head: Any) -> None:
    head.quant_method, head.weight = SimpleNamespace(), None  # a CPU's kernel for integers keeps no matrix
    target = SimpleNamespace(logits_processor=LogitsProcessor(200))
    assert "the target's is quantised (SimpleNamespace)" in refusal(lambda: draft_head(head, target, scoring(IDS)))
    assert isinstance(draft_head(head, target, scoring(None)), DraftHead)
