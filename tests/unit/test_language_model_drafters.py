"""A small model that drafts has the target's tokenizer, and names a mask token where it is to draft all positions at
once."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.language_model import prepare as module
from vllm_specext.options.check import parse
from vllm_specext.options.stock import DraftModelTreeOptions, LanguageModelOptions, PardTreeOptions
from vllm_specext.tree.budget import TreeShape

TEXT = {"a": 0, "b": 1, "c": 2}
MASK = 5
PARD = parse(PardTreeOptions, {"method": "pard-tree", "model": "drafter"})
SMALL = parse(DraftModelTreeOptions, {"method": "draft-model-tree", "model": "drafter"})


def check(
    monkeypatch: pytest.MonkeyPatch,
    options: LanguageModelOptions,
    vocabulary: dict[str, int],
    latent: bool = False,
    **own: Any,
) -> None:
    """As for a drafter with such a ``vocabulary`` and keys of its own, and with ``latent`` attention or none."""
    target = SimpleNamespace(max_model_len=64, vocabulary=TEXT)
    drafter = SimpleNamespace(
        is_hybrid=False,
        is_attention_free=False,
        uses_mrope=False,
        use_mla=latent,
        max_model_len=64,
        model="drafter",
        vocabulary=vocabulary,
        hf_config=SimpleNamespace(vocab_size=8, **own),
    )
    monkeypatch.setattr(
        module, "load_tokenizer", lambda model: SimpleNamespace(get_vocab=lambda: dict(model.vocabulary))
    )
    module.check(options, SimpleNamespace(target_model_config=target, draft_model_config=drafter))


def refusal(*arguments: Any, **own: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        check(*arguments, **own)
    return str(refused.value)


def test_the_mask_token_is_no_text_of_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = TEXT | {"<mask>": MASK}
    check(monkeypatch, PARD, vocabulary, pard_token=MASK)
    assert "whose token '<mask>' has id 5" in refusal(monkeypatch, SMALL, vocabulary, pard_token=MASK)
    assert "whose token '<other>' has id 6" in refusal(monkeypatch, PARD, vocabulary | {"<other>": 6}, pard_token=MASK)


def test_a_drafter_with_latent_attention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = refusal(monkeypatch, SMALL, TEXT, latent=True)
    assert message.startswith("speculative-config key 'model' is 'drafter', which has latent attention (MLA)")


@pytest.mark.parametrize("key", ["mask_token_id", "pard_token", "ptd_token_id"])
def test_each_name_of_the_token_is_read(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    check(monkeypatch, PARD, TEXT, **{key: MASK})
    message = refusal(monkeypatch, PARD, TEXT, **{key: 8})
    assert message == f"drafter/config.json: {key} is 8; expected a token below vocab_size = 8."


def test_a_model_without_such_a_token_drafts_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, SMALL, TEXT)
    message = refusal(monkeypatch, PARD, TEXT)
    assert message.startswith("drafter/config.json has none of mask_token_id, pard_token, ptd_token_id")
    assert message.endswith("method 'draft-model-tree' serves it.")


@pytest.mark.parametrize(("own", "lines"), [({"pard_token": MASK}, 1), ({}, 0)])
def test_a_model_that_could_draft_all_at_once_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, own: dict[str, int], lines: int
) -> None:
    monkeypatch.setattr(module, "logger", logging.getLogger("tests.pard"))
    with caplog.at_level(logging.INFO):
        check(monkeypatch, SMALL, TEXT, **own)
    assert len([one for one in caplog.messages if "method 'pard-tree'" in one]) == lines


def test_all_positions_are_drafted_in_one_pass_and_trees_may_be_read_in_more() -> None:
    assert PARD.tree == TreeShape(59, 12, 10, ends=(10, 11))
    assert PARD.chooses_depth
    assert PARD.lookahead == 60
    once = PARD.model_copy(update={"draft_passes": 1})
    assert once.tree == TreeShape(59, 12, 10, ends=())
    assert not once.chooses_depth
    assert once.lookahead is None
    flat = PARD.model_copy(update={"tree_depth": 1})
    assert flat.passes == 1
    chain = PARD.model_copy(update={"tree_top_k": 1})
    assert (chain.tree, chain.chooses_depth, chain.lookahead) == (None, False, None)
    assert SMALL.chooses_depth
