"""vLLM 0.33 lowers the target's context to the drafter's, unless the drafter shares the target's positions; a drafter
with its own text has its own limit, and stops drafting at it."""

import ast
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specext.engine.changes.against.definitions import Definitions
from vllm_specext.engine.changes.against.tree import open_tree
from vllm_specext.measure.bundled import MODELS, TARGET

FOLDER = os.environ.get("VLLM_SPECEXT_TEST_AGAINST")
RULE = "vllm.config.vllm:VllmConfig._limit_max_model_len_to_draft"
CONTEXT = 256


def as_0_33_asks(config: Any) -> None:
    """What the rule of 0.33 comes to."""
    drafting = config.speculative_config
    if not drafting.draft_shares_target_positions():
        config.model_config.max_model_len = min(
            config.model_config.max_model_len, drafting.draft_model_config.max_model_len
        )


def the_rule_itself() -> Callable[[Any], None]:
    """The function of the wheel, alone and with a logger that says nothing."""
    found = Definitions(open_tree(Path(str(FOLDER)))).find(RULE)
    assert found is not None
    assert found.node is not None
    names: dict[str, Any] = {"logger": SimpleNamespace(warning=lambda *arguments: None)}
    exec(compile(ast.Module([found.node], []), RULE, "exec"), names)
    rule: Callable[[Any], None] = names[RULE.rpartition(".")[2]]
    return rule


RULES = [
    as_0_33_asks,
    pytest.param(None, marks=pytest.mark.skipif(FOLDER is None, reason="VLLM_SPECEXT_TEST_AGAINST names no wheel")),
]


@pytest.mark.parametrize("rule", RULES, ids=["told", "of the wheel"])
@pytest.mark.parametrize("method", ["slem", "tli", "slrs"])
def test_a_foreign_drafters_short_context_leaves_the_targets_alone(
    tmp_path: Path, method: str, rule: Callable[[Any], None] | None
) -> None:
    config = engine_config(tmp_path, method)
    assert config.speculative_config.draft_model_config.max_model_len == CONTEXT // 2
    (rule or the_rule_itself())(config)
    assert config.model_config.max_model_len == CONTEXT


def test_without_our_word_the_targets_context_would_be_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = engine_config(tmp_path, "slem")
    monkeypatch.setattr(type(config.speculative_config), "draft_shares_target_positions", lambda self: False)
    as_0_33_asks(config)
    assert config.model_config.max_model_len == CONTEXT // 2


@pytest.mark.parametrize("shares", [True, False])
def test_for_drafters_over_the_targets_positions_vllms_own_rule_holds(
    monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    from vllm.config import SpeculativeConfig

    from vllm_specext.engine.config import SpecExtConfig
    from vllm_specext.options.check import parse
    from vllm_specext.registry import METHODS

    monkeypatch.setattr(SpeculativeConfig, "draft_shares_target_positions", lambda self: shares, raising=False)
    config = SpecExtConfig.__new__(SpecExtConfig)
    config.options = parse(METHODS["griffin"].options, {"method": "griffin", "model": "drafter"})
    assert config.draft_shares_target_positions() == shares


def engine_config(folder: Path, method: str) -> Any:
    """vLLM's configuration with a drafter whose context is half the target's."""
    from vllm.engine.arg_utils import EngineArgs

    from vllm_specext.plugin import register

    register()
    drafter = shutil.copytree(MODELS / "foreign_bpe", folder / "drafter")
    config = json.loads((drafter / "config.json").read_text()) | {"max_position_embeddings": CONTEXT // 2}
    (drafter / "config.json").write_text(json.dumps(config))
    return EngineArgs(
        model=str(TARGET),
        dtype="float32",
        max_model_len=CONTEXT,
        kv_cache_memory_bytes=1 << 28,
        speculative_config={"method": method, "model": str(drafter), "num_speculative_tokens": 4},
    ).create_engine_config()
