"""What a pair of tokenizers is told to the engine as, and what the log says of it."""

import logging

import pytest

from tests.unit.foreign_tokenizers import TOKENIZERS, vocabulary
from vllm_specext.methods.foreign_vocab.pairing import Pairing
from vllm_specext.methods.foreign_vocab.prepare import NAMED, logger, report
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import SAMPLES


def pairing(target: str, drafter: str) -> Pairing:
    return Pairing(vocabulary(target), vocabulary(drafter), markers={}, opening=())


@pytest.mark.parametrize("drafter", TOKENIZERS)
def test_every_token_of_the_target_has_a_spelling_of_the_same_bytes(drafter: str) -> None:
    both = pairing(next(iter(TOKENIZERS)), drafter)
    spelled = both.spellings()
    assert len(spelled) == len(both.target.token_bytes)
    assert all(spelled)
    known = [(own, ids) for own, ids in zip(both.target.token_bytes, spelled, strict=True) if own is not None]
    assert len(known) > 500
    # A drafter that has a token for every byte can spell everything, parts of characters too.
    assert [own for own, ids in known if both.drafter.bytes_of(ids) != own] == []


def test_a_vocabulary_of_shorter_tokens_takes_more_of_them() -> None:
    both, back = (pairing(*names) for names in (list(TOKENIZERS)[:2], list(TOKENIZERS)[1::-1]))
    counts = [sum(map(len, own.encode_batch(SAMPLES))) for own in (both.target, both.drafter)]
    assert both.draft_tokens_per_target_token == counts[1] / counts[0] != 1
    assert back.draft_tokens_per_target_token == counts[0] / counts[1]


def test_the_log_names_special_tokens_without_a_counterpart(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test of this process may have said it before.
    monkeypatch.setattr(logger, "warning_once", logger.warning)
    both = pairing(*list(TOKENIZERS)[:2])
    assert both.target.markers
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO):
            report(both, is_shorter=True)
    finally:
        logger.removeHandler(caplog.handler)
    (line,) = {message for message in caplog.messages if "no counterpart" in message}
    assert all(name in line for name in list(both.target.markers)[:NAMED])
    assert any("outgrow the drafter's context" in message for message in caplog.messages)
