"""From raw chats to a served drafter: two training processes, an interruption, a process that is killed, and the same
command again after each."""

from copy import copy
from pathlib import Path

import pytest
from openai import OpenAI
from safetensors import safe_open

from tests.e2e.trainings import Training, kill_rank, wait_for
from vllm_specext.measure.arguments import bundled_arguments
from vllm_specext.measure.bundled import TARGET
from vllm_specext.measure.engine_process import EngineProcess
from vllm_specext.measure.server import Server, speculation
from vllm_specext.target_stages.held_out import choose
from vllm_specext.training.data.folder import read_data
from vllm_specext.training.recipes.staged import CHAIN
from vllm_specext.training.shard_rows import ShardRows, find_shards

pytestmark = pytest.mark.slow

UNTRAINED = 1.05
"""Tokens per verification that a drafter before its first step is far below."""


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """One that was interrupted, then lost a process, and then went on to its end."""
    training = Training(tmp_path_factory.mktemp("training"), TARGET, "--processes=2", "--temperature=0")
    process = training.start()
    wait_for(lambda: len(training.log()) >= 1, process)
    process.terminate()
    assert process.wait(120) == 3, training.output.read_text()
    assert "interrupted in stage train: its state is written; the same command goes on" in training.output.read_text()
    process = training.start()
    wait_for(lambda: len(training.log()) >= 3, process)
    kill_rank(1, training.run_folder)
    assert process.wait(120) == 75, training.output.read_text()
    told = training.output.read_text()
    assert "the same command goes on from what is there" in told
    assert len(training.log()) < 5  # there was something left to do
    status, told = training.run()
    assert status == 0, told + training.logs()
    assert "1/4 prepare: done already" in told
    return training


def test_it_went_on_from_its_state_and_made_every_step_once(training: Training) -> None:
    assert [(entry["stage"], entry["step"]) for entry in training.log()] == [(1, 8), (1, 16), (1, 24), (2, 8), (3, 8)]


def test_the_drafter_is_useful_and_the_engine_accepts_what_was_simulated(training: Training) -> None:
    check = training.read("check.json")
    assert check["identical"]
    assert check["prompts"] >= 4
    assert check["served"]["tokens_per_verification"] >= 1.3
    assert check["served"]["tokens_per_verification"] >= UNTRAINED + 0.25
    served, simulated = (check[name]["accepted_per_depth"] for name in ("served", "simulated"))
    assert served == pytest.approx(simulated, abs=0.05)
    assert served[0] > served[4] > 0


def test_the_export_has_all_that_it_is_to_have(training: Training) -> None:
    drafter = training.run_folder / "drafter"
    names = {path.name for path in drafter.iterdir()}
    beside = {"README.md", "training.json", "acceptance.json", "plan.json"}
    assert names == {"model.safetensors", "config.json"} | beside
    with safe_open(drafter / "model.safetensors", framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
    card = (drafter / "README.md").read_text()
    assert card.startswith(f'---\nbase_model: "{TARGET}"\nlibrary_name: "vllm-specext"\n')
    report = (training.run_folder / "report.md").read_text()
    assert all(
        name in report and (training.run_folder / name).stat().st_size for name in ("losses.png", "acceptance.png")
    )


def test_a_server_of_the_folder_gives_the_tokens_of_plain_decoding(training: Training, tmp_path: Path) -> None:
    held_out = choose(read_data(training.run_folder / "data", "valid"), 160, CHAIN).prompts
    # It drafts whether that pays or not. All else is in the folder: the target, the method, the drafter.
    keys = {"adaptive_drafts": False}
    with Server(tmp_path / "server.log", keys, target=training.run_folder / "drafter") as server:
        openai = OpenAI(base_url=f"{server.start().url}/v1", api_key="none", max_retries=0, timeout=600)
        answers = [
            openai.completions.create(
                model="bundled", prompt=prompt, max_tokens=48, temperature=0, extra_body={"return_token_ids": True}
            ).choices[0]
            for prompt in held_out
        ]
        told = speculation(server)
    with EngineProcess("plain", [f"--model={TARGET}", *bundled_arguments()], None, tmp_path / "plain.log") as engine:
        plain = engine.turn(held_out, 48, 1).tokens
    assert [answer.model_extra["token_ids"] for answer in answers if answer.model_extra] == plain
    assert told.acceptance_length >= 1.3


def test_done_stages_are_not_made_again_and_another_recipe_is_refused(training: Training) -> None:
    status, told = training.run()
    assert status == 0, told
    assert all(f"{stage}: done already" in told for stage in ("1/4 prepare", "2/4 train", "3/4 export", "4/4 check"))
    training.arguments.append("--set=packs=4")
    status, told = training.run()
    assert status == 2
    assert "was begun with recipe.packs 2, but recipe.packs is 4 now" in told
    assert "Traceback" not in told
    training.arguments.pop()


@pytest.mark.extended
def test_another_recipe_takes_the_features_that_are_there(training: Training, tmp_path: Path) -> None:
    other = copy(training)
    other.run_folder, other.output = tmp_path / "run", tmp_path / "output.txt"
    other.arguments = [
        *(*training.arguments, f"--output={other.run_folder}", f"--features-of={training.run_folder}"),
        *(f"--init={training.run_folder / 'drafter'}", "--set=packs=4", "--set=steps=[2, 1, 1]"),
    ]
    status, told = other.run()
    assert status == 0, told + other.logs()
    assert "1/4 prepare: done already" in told
    assert (other.run_folder / "features").resolve() == training.run_folder / "features"
    assert other.read("check.json")["identical"]


@pytest.mark.extended
def test_a_shard_that_was_deleted_is_made_again(training: Training) -> None:
    """As the message about a damaged one says."""
    features = training.run_folder / "features"
    rows = len(ShardRows(find_shards(features), 0).lengths)
    min(features.glob("*.safetensors")).unlink()
    (training.run_folder / "data" / "stats.json").unlink()
    status, told = training.run()
    assert status == 0, told + training.logs()
    assert len(ShardRows(find_shards(features), 0).lengths) == rows
    assert "2/4 train: done already" in told
