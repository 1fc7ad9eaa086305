"""Drafters that are served by their own names: by a server, and in vLLM's own configuration of the launch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.conftest import Client
from tests.e2e.launches import configure, edit_config
from tests.e2e.test_openai_client import complete
from vllm_specext.engine.changes.guard import installed_vllm
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS
from vllm_specext.measure.server import Server, speculation
from vllm_specext.served_drafter import served_keys

TAKES_FOLDERS = str(installed_vllm()).startswith("0.32.")
"""Whether vLLM's own methods have a target that is a folder, where the drafter names it."""

METHODS = {"griffin": "griffin", "moa": "moa", "eagle3": "eagle3-tree", "dflash": "dflash-tree"}
ENOUGH = 40
"""Verifications after which the share of accepted drafts is no chance."""


def test_a_drafter_served_by_its_own_name_drafts_and_answers_as_plain_decoding(
    served: Server, client: Client, without: OpenAI, prompts: list[str]
) -> None:
    assert not [argument for argument in served.command if "speculative" in argument]

    def ids(openai: OpenAI) -> list[list[int]]:
        return [complete(openai, prompt).choices[0].token_ids for prompt in prompts[:6]]

    assert ids(client(served)) == ids(without)
    # How many tokens are drafted is chosen by measured times, so that a busy machine may draft hardly any of them.
    for prompt in prompts[6:]:
        if speculation(served).verifications >= ENOUGH:
            break
        complete(client(served), prompt)
    counted = speculation(served)
    assert counted.verifications > 0
    assert counted.accepted[0] > counted.verifications / 3


def launch(drafter: Path, **keys: Any) -> Any:
    return configure(keys or None, {"model": str(drafter)})


@pytest.mark.parametrize("drafter", METHODS)
def test_vllm_finds_target_and_method_from_any_directory(
    drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("drafter").symlink_to(MODELS / drafter)
    for place in (MODELS / drafter, Path("drafter")):
        config = launch(place)
        assert (config.speculative_config.method, config.speculative_config.num_speculative_tokens) == (
            METHODS[drafter],
            62 if drafter == "moa" else 59,
        )
        assert config.model_config.model == config.model_config.tokenizer == str(MODELS / "target")
    config = launch(MODELS / drafter, num_speculative_tokens=4, tree_top_k=1)
    assert config.speculative_config.tree is None
    assert config.speculative_config.num_speculative_tokens == 4


def in_the_format_of_speculators(folder: Path, kind: str) -> Path:
    """The EAGLE-3 drafter with its sizes nested, and with a length for chains."""
    shutil.copytree(MODELS / "eagle3", folder)
    sizes = json.loads((folder / "config.json").read_text())
    keys = served_keys("eagle3-tree", str(MODELS / "target"))
    config = keys | {"architectures": ["Eagle3Speculator"], "draft_vocab_size": 2048, "norm_before_residual": False}
    config |= {"speculators_model_type": kind, "transformer_layer_config": sizes}
    config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 3 if kind == "eagle3" else 24
    for key in keys:
        del sizes[key]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_eagle3_drafter_in_the_format_of_speculators_gets_trees_on_demand_or_by_its_type(tmp_path: Path) -> None:
    stock = in_the_format_of_speculators(tmp_path / "stock", "eagle3")
    if TAKES_FOLDERS:
        config = launch(stock).speculative_config
        assert (config.method, config.num_speculative_tokens) == ("eagle3", 3)
    tree = launch(stock, method="eagle3-tree").speculative_config
    assert (tree.method, tree.num_speculative_tokens) == ("eagle3-tree", 59)
    assert tree.tree is not None
    ours = launch(in_the_format_of_speculators(tmp_path / "ours", "eagle3-tree")).speculative_config
    assert (ours.method, ours.num_speculative_tokens) == ("eagle3-tree", 24)
    assert ours.draft_model_config.architectures == tree.draft_model_config.architectures


def test_vllms_short_options_for_what_the_file_says_are_a_sentence(tmp_path: Path) -> None:
    stock = in_the_format_of_speculators(tmp_path / "stock", "eagle3")
    method = stock, {"spec_method": "eagle3-tree"}, "'method' is given twice, with --spec-method 'eagle3-tree'"
    tokens = MODELS / "griffin", {"spec_tokens": 4}, "'num_speculative_tokens' is given twice, with --spec-tokens 4"
    for drafter, option, said in (method, tokens) if TAKES_FOLDERS else (tokens,):
        with pytest.raises(ConfigurationError, match=said):
            configure(None, {"model": str(drafter), **option})


def test_a_language_model_may_name_its_target_and_the_method_too(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "foreign_bpe", tmp_path / "drafter")
    edit_config(**served_keys("slem", str(MODELS / "target")))(tmp_path / "drafter")
    config = launch(tmp_path / "drafter")
    assert (config.speculative_config.method, config.speculative_config.num_speculative_tokens) == ("slem", 6)
    assert config.model_config.model == str(MODELS / "target")


def test_vllms_own_method_drafts_with_the_bundled_drafter_as_before() -> None:
    config = configure({"method": "eagle3", "model": str(MODELS / "eagle3"), "num_speculative_tokens": 4})
    assert config.speculative_config.method == "eagle3"


def served_with(folder: Path, drafter: str, target: Path) -> Path:
    """A copy of a bundled drafter that names another target."""
    shutil.copytree(MODELS / drafter, folder)
    edit_config(**served_keys(METHODS[drafter], str(target)))(folder)
    return folder


@pytest.mark.parametrize("drafter", METHODS)
def test_a_target_that_the_drafter_does_not_fit_is_a_sentence(drafter: str, tmp_path: Path) -> None:
    other = served_with(tmp_path / "drafter", drafter, MODELS / "foreign_bpe")
    with pytest.raises(ConfigurationError) as raised:
        launch(other)
    message = str(raised.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert "128" in message or "1024" in message


def test_without_our_command_too_a_missing_target_is_a_sentence(tmp_path: Path) -> None:
    drafter = served_with(tmp_path / "drafter", "griffin", Path("../gone"))
    program = f"from vllm.engine.arg_utils import EngineArgs; EngineArgs(model={str(drafter)!r}).create_engine_config()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"error: {drafter}/config.json: speculators_config.verifier.name_or_path is '../gone', which is neither there "
        "nor a hub id (owner/name)."
    )


def test_without_the_keys_a_drafter_is_to_vllm_what_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    shutil.copytree(MODELS / "eagle3", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({key: config[key] for key in config if "specu" not in key}))
    found = launch(folder)
    assert found.speculative_config is None
    assert found.model_config.model == str(folder)
