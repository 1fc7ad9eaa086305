"""What `make train-demo` gives to the user's own command, and what it expects of the drafter."""

import itertools
import json
import re
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from benchmarks.ablation.chains import eagle3_chains
from tests.unit.docs_pages import ROOT
from tests.unit.moa_acceptance import measure_moa_acceptance
from tests.unit.tiny_llama import VOCABULARY, random_rows
from vllm_specext import served_drafter
from vllm_specext.demo import acceptance, make_rows, train_bundled
from vllm_specext.demo.acceptance import BY_RECIPE
from vllm_specext.demo.train_bundled import RECIPES
from vllm_specext.demo.training_text import CHAIN, LENGTH, PROMPT
from vllm_specext.measure.bundled import MODELS, TARGET, bundled_prompts
from vllm_specext.training.acceptance import Acceptance, accepted_tokens, greedy_continuations, summarise
from vllm_specext.training.data.formats import read_row
from vllm_specext.training.data.row import Row
from vllm_specext.training.griffin.acceptance import measure_acceptance
from vllm_specext.training.griffin.warm_start import warm_griffin_drafter
from vllm_specext.training.pipeline.eagle3 import Eagle3Method
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.moa import MoAMethod
from vllm_specext.training.pipeline.target import read_target
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
    figures = {name: {"tokens_per_verification": x} for name, x in texts.items()}
    found = acceptance.too_few(figures, {"code greedy": 2.6, "prose greedy": 3.0})
    assert [sentence.split()[0] for sentence in found] == said


def test_a_drafters_figures_end_the_command_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {f"{kind} greedy": {"tokens_per_verification": 2.8} for kind in ("code", "prose")}
    monkeypatch.setattr(acceptance, "measured", lambda *_: figures)
    options = ["--least-code", "2.6", "--least-prose", "3"]
    monkeypatch.setattr("sys.argv", ["acceptance", "griffin", "--work", "work", "--drafter", "drafter", *options])
    with pytest.raises(SystemExit) as ended:
        acceptance.main()
    assert ended.value.code == "prose greedy: 2.80 tokens per verification; expected 3.0 or more."
    assert json.loads(capsys.readouterr().out) == figures


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(TARGET).float().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def own_text(target: LlamaForCausalLM) -> torch.Tensor:
    """Beginnings of the demonstration's prompts, and how the target goes on: ``[3, 144]``."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    texts = [row["text"] for row in bundled_prompts()]
    prompts = [ids[:PROMPT] for ids in tokenizer(texts)["input_ids"] if len(ids) >= PROMPT]
    return greedy_continuations(target, torch.tensor(prompts[:3]), 48)


def chains_of(name: str, target: LlamaForCausalLM, rows: torch.Tensor) -> Acceptance:
    """By what each method's training measures with."""
    if name == "griffin":
        return measure_acceptance(warm_griffin_drafter(target, MODELS / name), target, rows, PROMPT, CHAIN)
    if name == "moa":
        return measure_moa_acceptance(MoAMethod().read(MODELS / name, read_target(str(TARGET))), target, rows, PROMPT)
    model = Eagle3Method().read(MODELS / name, read_target(str(TARGET)))
    return summarise(accepted_tokens(eagle3_chains(model, target, rows, CHAIN), rows), PROMPT, CHAIN)


@pytest.mark.parametrize("name", BY_RECIPE)
def test_a_bundled_drafters_chains_are_counted(
    name: str, target: LlamaForCausalLM, own_text: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "held_out_rows", lambda target, work: {"own": own_text})
    found = acceptance.measured(TRAINABLE[name], MODELS / name, Path())
    expected = chains_of(name, target, own_text)
    # GRIFFIN's own copy of the embedding is rounded; what is counted here begins with the target's.
    if name == "griffin":
        assert found["own"]["tokens_per_verification"] == pytest.approx(expected.tokens_per_verification, rel=0.05)
    else:
        assert found == {"own": {"rows": 3, **asdict(expected)}}
    assert expected.tokens_per_verification > 1.5


def test_the_bundled_drafters_recipes_are_alike_where_they_are_compared() -> None:
    recipes = {name: read_recipe(name, str(RECIPES / f"{name}.toml"), []) for name in BY_RECIPE}
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
