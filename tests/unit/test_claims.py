"""What the documents say that vLLM has and has not, read from the installed vLLM."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from vllm.config import ModelConfig, ParallelConfig, VllmConfig, speculative
from vllm.v1.spec_decode.vocab_mapping import VocabMapping

from tests.unit.docs_pages import PAGES, ROOT
from vllm_specext.bench.configurations import VLLM_TLI
from vllm_specext.measure.bundled import TARGET
from vllm_specext.registry import METHODS

V2_LACKS = VllmConfig._get_v2_model_runner_unsupported_features
TEXTS = [*PAGES, *(ROOT / name for name in ("pyproject.toml", "mkdocs.yml", "vllm_specext/__init__.py"))]


def flat(literal: Any) -> set[str]:
    return {name for part in get_args(literal) for name in (flat(part) if get_args(part) else {part})}


def test_no_text_says_that_nobody_else_has_the_methods() -> None:
    claims = ("no serving engine", "no other serving engine", "no other engine")
    assert [path.name for path in TEXTS if any(claim in path.read_text("utf-8") for claim in claims)] == []


def test_vllm_has_none_of_our_methods_by_name_and_no_trees() -> None:
    assert not flat(speculative.SpeculativeMethod) & set(METHODS)
    keys = {field.name for field in fields(speculative.SpeculativeConfig)}
    # Suffix decoding looks drafts up in a tree; they are chains.
    assert [key for key in keys if "tree" in key and not key.startswith("suffix_decoding_")] == []


def tli(**keys: str) -> speculative.SpeculativeConfig:
    target = ModelConfig(str(TARGET), dtype="float32", max_model_len=64)
    return speculative.SpeculativeConfig(
        target_model_config=target, target_parallel_config=ParallelConfig(), **VLLM_TLI | keys
    )


def test_vllms_own_tli_is_greedy_and_runs_on_runner_v1() -> None:
    surroundings = SimpleNamespace(speculative_config=tli(), parallel_config=ParallelConfig())
    assert "heterogeneous-vocabulary draft models" in V2_LACKS(surroundings)
    with pytest.raises(ValueError, match="only supports greedy draft"):
        tli(draft_sample_method="probabilistic")


def test_vllms_own_tli_matches_tokens_by_spelling_and_reads_the_end_for_what_the_drafter_lacks() -> None:
    """Two vocabularies with one text of two bytes, in the spellings of byte-level BPE and of SentencePiece."""
    target = vocabulary({"a": 0, "\u00c3\u00a9": 1, "</s>": 2})
    drafter = vocabulary({"</s>": 0, "a": 1, "\u00e9": 2})
    mapping = VocabMapping(target, drafter, 3, 3, "cpu")
    assert mapping.map_target_to_draft_ids(torch.tensor([0, 1, 2])).tolist() == [1, 0, 0]


def vocabulary(ids: dict[str, int]) -> Any:
    return SimpleNamespace(
        get_vocab=lambda: ids, unk_token_id=None, eos_token_id=ids["</s>"], encode=lambda *_, **__: []
    )
