"""From chats to features in one pass of the engine: each prepared row has the features that transformers computes."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forks
from tests.engine.conftest import SECONDS
from tests.engine.test_capture import CLOSE, ENGINE, furthest, known, target
from tests.engine.workload import DEMO, TARGET
from vllm_specext.training.data.folder import read_data
from vllm_specext.training.data.row import Row
from vllm_specext.training.fingerprint import fingerprint
from vllm_specext.training.shard_rows import ShardRows, find_shards

__all__ = ["target"]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for CPUs: engines on a GPU are not forked")
NEWLINE = 202
"""A token that ends answers soon, so that conversations go on."""


def chats(count: int) -> list[dict[str, Any]]:
    texts = [prompt["text"][:150] for prompt in json.loads((DEMO / "prompts.json").read_text())]
    said = [(f"{number}: {texts[number % len(texts)]}", f"And {number}?", "Why?") for number in range(count)]
    return [{"messages": [m for text in texts for m in ({"role": "user", "content": text}, ANSWER)]} for texts in said]


ANSWER = {"role": "assistant", "content": "As was said."}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats(20))))
    data = {"answers": "mix", "max_length": 256, "max_new_tokens": 40, "conversations_at_once": 8, "group": 5}
    spec = {
        "llm": ENGINE | {"max_length": 256},
        "settings": data | {"data": [str(folder / "chats.jsonl")]},
        "sampling": {"temperature": 1.0, "seed": 3, "stop_token_ids": [0, 3, NEWLINE]},
        "folder": str(folder),
    }
    files = folder / "spec.json", folder / "out.json"
    files[0].write_text(json.dumps(spec))
    done = forks.run(
        "tests.engine.preparing:main",
        *map(str, files),
        environment=os.environ | {"HF_HUB_OFFLINE": "1"},
        folder=Path.cwd(),
        streams=folder / "engine",
        seconds=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return folder, json.loads(files[1].read_text())


def rows_in(folder: Path) -> dict[str, Row]:
    return {row.key: row for part in ("train", "valid") for row in read_data(folder, part)}


def test_each_prepared_row_has_its_features(prepared: tuple[Path, dict[str, Any]], target: Any) -> None:
    folder, out = prepared
    shards = find_shards(folder / "features", fingerprint(TARGET))
    keys = [key for shard in shards for key in shard.keys]
    expected = rows_in(folder / "data")
    assert out["data"]["missing"] == []
    assert len(keys) == len(set(keys)) >= 20
    assert expected.keys() == set(keys)
    found = ShardRows(shards, seed=0).read(range(len(keys)))
    unread = Counter()
    for key, row in zip(keys, found, strict=True):
        assert row.token_ids.tolist() == expected[key].token_ids.tolist()
        assert row.loss_mask.bool().tolist() == expected[key].loss_mask.tolist()
        unread[len(row.token_ids) - known(row)] += 1
    # What the target sampled last was never its input; of given text all is.
    given = out["data"]["stats"]["read"]["given_answers"]
    assert unread == {0: given, 1: len(keys) - given}
    assert min(unread.values()) >= 5
    assert furthest(target, found) < CLOSE
    # Some conversations had all of their three turns.
    assert {key.rpartition("-")[2] for key in keys} == {"0", "1", "2"}


def test_a_preparation_that_begins_anew_asks_nobody(prepared: tuple[Path, dict[str, Any]]) -> None:
    folder, out = prepared
    assert out["again"] == out["data"]
    again, before = rows_in(folder / "again"), rows_in(folder / "data")
    assert {key: row.token_ids.tolist() for key, row in again.items()} == {
        key: row.token_ids.tolist() for key, row in before.items()
    }
