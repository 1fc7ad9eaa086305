"""A drafter of each further method for the bundled target, from raw chats to what an engine accepts; the target of one
computes its features beside the training, in two processes."""

from pathlib import Path

import pytest

from tests.e2e.trainings import TWO_STAGES, Training
from vllm_specext.measure.bundled import TARGET

pytestmark = pytest.mark.slow

ONE_STAGE = """
steps = [16]
learning_rates = [8e-3]
warmup_steps = 2
drafted = [3, 8]
tokens_per_step = 512
packs = 2
log_every = 16
lsa_mlp_size = 64
bfloat16 = false
"""
RECIPES = {"eagle3": TWO_STAGES.replace("[24, 8]", "[16, 8]"), "moa": ONE_STAGE}
OPTIONS = {"eagle3": ("--stream", "--processes=2"), "moa": ()}
LEFT = {"eagle3": {"held-out"}, "moa": set[str]()}
SERVED = {"eagle3": ("EAGLE-3", "eagle3-tree"), "moa": ("MoA", "moa")}


@pytest.mark.parametrize("method", RECIPES)
def test_a_drafter_is_trained_exported_and_accepted_by_an_engine(method: str, tmp_path: Path) -> None:
    options = ("--temperature=0", "--max-length=128", "--set=mlp_size=256", *OPTIONS[method])
    training = Training(tmp_path, TARGET, *options, method=method, recipe=RECIPES[method])
    status, told = training.run()
    assert status == 0, told + training.logs()
    check = training.read("check.json")
    assert check["identical"]  # with plain decoding's tokens
    assert check["prompts"] >= 4
    assert check["largest_difference"] <= 0.05  # between what the engine accepted and what simulated chains say
    assert check["served"]["tokens_per_verification"] >= 1.3
    title, serves = SERVED[method]
    assert training.read("drafter/config.json")["speculators_model_type"] == serves
    assert f"# {title} drafter for" in (training.run_folder / "drafter" / "README.md").read_text()
    # Of what the target computed beside the training nothing is left.
    left = {path.name[:8] for path in (training.run_folder / "features").iterdir() if path.suffix != ".json"}
    assert left == LEFT[method]
