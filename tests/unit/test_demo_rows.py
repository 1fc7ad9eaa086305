"""What `make train-demo` gives to the user's own command, and what it expects of the drafter."""

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.unit.docs_pages import ROOT
from tests.unit.tiny_llama import VOCABULARY, random_rows
from vllm_specext import served_drafter
from vllm_specext.demo import griffin_acceptance, make_rows, train_bundled
from vllm_specext.demo.train_bundled import RECIPES, SERVES
from vllm_specext.demo.training_text import LENGTH
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.training.data.formats import read_row
from vllm_specext.training.data.row import Row
from vllm_specext.training.recipes.named import read_recipe


def test_rows_are_read_as_prepared_ones_that_learn_what_comes_after_the_prompt() -> None:
    rows = [*random_rows(2, 30), random_rows(1, 24)[0]]
    written = [json.loads(line) for line in make_rows.lines(rows, given=24)]
    read = [read_row(row, "rows.jsonl", VOCABULARY) for row in written]
    assert len(read) == 2  # nothing can be learnt from the last one
    for row, ids in zip(read, rows, strict=False):
        assert isinstance(row, Row)
        assert row.token_ids.tolist() == ids.tolist()
        assert row.loss_mask.tolist() == [False] * 24 + [True] * 6


def test_the_corpus_and_the_targets_own_text_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts, own = random_rows(3, LENGTH), [row[:n] for row, n in zip(random_rows(2, LENGTH, 1), (200, 96), strict=True)]
    monkeypatch.setattr(make_rows, "keep_corpus", lambda work: None)
    monkeypatch.setattr(make_rows.LlamaForCausalLM, "from_pretrained", lambda _: torch.nn.Linear(1, 1))
    monkeypatch.setattr(make_rows, "windows", lambda path, count, length, seed: texts[:count, :length])
    monkeypatch.setattr(make_rows, "own_rows", lambda target, work, count, seed: own[:count])
    monkeypatch.setattr("sys.argv", ["make_rows", "--work", str(tmp_path), "--texts", "2"])
    make_rows.main()
    written = [json.loads(line) for line in (tmp_path / make_rows.FILE).read_text().splitlines()]
    assert [(len(row["token_ids"]), sum(row["loss_mask"])) for row in written] == [
        *[(LENGTH, LENGTH - make_rows.GIVEN)] * 2,
        (200, 200 - 96),
    ]


def test_the_recipe_fits_the_rows_and_the_processes_of_the_make_target() -> None:
    text = (ROOT / "Makefile").read_text().partition("\ntrain-demo:")[2].partition("\n\n")[0]
    (command,) = [line for line in text.replace("\\\n", " ").splitlines() if "vllm-specext train" in line]
    given = shlex.split(re.sub(r"[$@()]", "", command))
    options = {name: value for name, value in itertools.pairwise(given) if name.startswith("--")}
    recipe = read_recipe("griffin", str(ROOT / options["--recipe"]), [])
    assert recipe.packs_of_each(int(options["--processes"])) > 0
    assert recipe.tokens_per_step >= int(options["--max-length"]) == LENGTH
    assert make_rows.FILE in options["--data"]


@pytest.mark.parametrize(
    ("code", "prose", "said"), [(2.6, 3.0, []), (2.5, 3.4, ["code"]), (1.0, 2.9, ["code", "prose"])]
)
def test_a_drafter_that_accepts_less_than_expected_is_told(code: float, prose: float, said: list[str]) -> None:
    texts = {"code text": 1.5, "code greedy": code, "prose text": 1.2, "prose greedy": prose}
    found = griffin_acceptance.too_few({name: {"tokens_per_verification": x} for name, x in texts.items()})
    assert [sentence.split()[0] for sentence in found] == said


def test_a_drafters_figures_end_the_command_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {name: {"tokens_per_verification": 2.8} for name in griffin_acceptance.EXPECTED}
    target = SimpleNamespace(float=lambda: torch.nn.Linear(1, 1))
    monkeypatch.setattr(griffin_acceptance.LlamaForCausalLM, "from_pretrained", lambda _: target)
    monkeypatch.setattr(griffin_acceptance, "warm_griffin_drafter", lambda target, folder: None)
    monkeypatch.setattr(griffin_acceptance, "measured", lambda *_: figures)
    monkeypatch.setattr("sys.argv", ["griffin_acceptance", "--work", "work", "--drafter", "drafter"])
    with pytest.raises(SystemExit) as ended:
        griffin_acceptance.main()
    assert ended.value.code == "prose greedy: 2.80 tokens per verification; expected 3.0 or more."
    assert json.loads(capsys.readouterr().out) == figures


def test_the_bundled_drafters_recipes_are_alike_where_they_are_compared() -> None:
    recipes = {name: read_recipe(name, str(RECIPES / f"{name}.toml"), []) for name in SERVES}
    griffin, eagle3 = recipes["griffin"], recipes["eagle3"]
    for key in ("steps", "learning_rates", "optimizer", "muon_factor", "mlp_size", "seed"):
        assert getattr(griffin, key) == getattr(eagle3, key)
    assert {recipe.tokens_of_a_step for recipe in recipes.values()} == {16 * LENGTH}


def test_a_trained_drafter_takes_the_place_of_the_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, trained = tmp_path / "models", tmp_path / "trained"
    shutil.copytree(MODELS / "griffin", models / "griffin")
    shutil.copytree(MODELS / "griffin", trained)
    served_drafter.write(trained, "griffin", str(TARGET))
    monkeypatch.setattr(train_bundled, "MODELS", models)
    train_bundled.keep("griffin", trained)
    config = json.loads((models / "griffin" / "config.json").read_text())
    named = config["speculators_config"]["verifier"]["name_or_path"]
    assert not Path(named).is_absolute()
    assert (models / "griffin" / named).resolve() == TARGET
    assert (models / "griffin" / "README.md").exists()
