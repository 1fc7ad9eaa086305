"""``vllm-specext train`` before its first stage: the plan, and one sentence for each input that is wrong."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.runs import CHATS, chats, settings
from vllm_specext.cli import app, extras
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.training.pipeline import plan as plans
from vllm_specext.training.pipeline.folder import locked
from vllm_specext.training.pipeline.settings import check_stream, default_processes
from vllm_specext.training.recipes.named import RECIPES, read_recipe


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    chats(tmp_path)
    return CliRunner()


def command(
    *options: str,
    method: str = "griffin",
    target: str = str(TARGET),
    data: str = "chats.jsonl",
    output: str = "run",
) -> list[str]:
    return ["train", method, "--target", target, "--data", data, "--output", output, *options]


def refused(run: CliRunner, *words: str) -> str:
    done = run.invoke(app, [*words])
    assert done.exit_code == 2, done.output
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("error: ")
    assert sentence.endswith(".")
    return sentence


def test_a_dry_run_shows_the_plan_and_makes_nothing(run: CliRunner) -> None:
    done = run.invoke(app, command("--dry-run"))
    assert done.exit_code == 0, done.output
    assert "features" in done.output
    # rich's console is as wide as it was when another test used it first.
    assert "bounded by 4 rows of at most 1023 tokens" in " ".join(done.output.split())
    assert not Path("run").exists()


OPTIONS = {
    "--set=packs=0": "the recipe's key 'packs' is 0, but input should be greater than or equal to 1.",
    "--set=learning_rates=[0,0,0]": "the recipe's key 'learning_rates.0' is 0, but input should be greater than 0.",
    "--set=rate=1": "the recipe's key 'rate' is unknown; allowed are",
    "--set=packs": "--set is 'packs', but must be KEY=VALUE",
    "--set=tokens_per_step=64": "the recipe's key 'tokens_per_step' is 64, but rows have up to 1023 tokens",
    "--recipe=best": "--recipe is 'best', but must be",
    "--recipe=gone.toml": "--recipe is 'gone.toml', which cannot be read",
    "--max-length=4": "the setting 'max_length' is 4",
    "--max-length=5000": "--max-length is 5000, but the target has max_position_embeddings 1024",
    "--samples=0": "the setting 'samples' is 0",
    "--tokens=-5": "the setting 'tokens' is -5",
    "--temperature=-1": "the setting 'temperature' is -1.0",
    "--processes=0": "--processes is 0, but at least 1 is needed.",
    "--processes=3": "the recipe's key 'packs' is 4, which 3 processes cannot share evenly",
    "--tensor-parallel=0": "the setting 'tensor_parallel' is 0",
    "--template-flag=thinking": "--template-flag is 'thinking', but must be NAME=VALUE.",
    "--template-flag=thinking=true": "the template flag 'thinking' is none that the target's chat template reads",
    "--log=paper": "the setting 'log.0' is 'paper', but input should be 'tensorboard', 'wandb' or 'trackio'.",
    "--log=trackio": "log has the tracker 'trackio', which is not installed",
    "--init=gone": "--init is 'gone', which is neither a directory nor a hub id",
    f"--init={MODELS / 'moa'}": "is not a GRIFFIN checkpoint",
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_cannot_be_is_refused(option: str, run: CliRunner) -> None:
    assert OPTIONS[option] in refused(run, *command(option))
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--set=noise=1", "the recipe's key 'noise' is unknown; allowed are"),
        ("--recipe=released", "--recipe is 'released', but must be 'ours' or a file"),
        (f"--init={MODELS / 'griffin'}", "griffin/config.json: architectures is ['GriffinForCausalLM']; expected"),
    ],
)
def test_an_option_that_another_method_has_is_refused(option: str, expected: str, run: CliRunner) -> None:
    assert expected in refused(run, *command(option, method="eagle3"))


def test_a_module_is_trained_of_a_target_that_has_one(run: CliRunner) -> None:
    expected = "of the architecture 'LlamaForCausalLM'; modules are trained of MiMoForCausalLM, Qwen3_5ForCausalLM"
    assert expected in refused(run, *command(method="mtp"))


def test_rows_have_room_for_a_chain(run: CliRunner) -> None:
    words = "--max-length is 18, but drafters are measured by chains of 15 tokens, which come after a prompt and an"
    assert words in refused(run, *command("--max-length=18", method="dflash"))
    for method, least in (("dflash", 19), ("dspark", 16), ("griffin", 16)):
        assert run.invoke(app, command("--dry-run", f"--max-length={least}", method=method)).exit_code == 0


def test_what_only_a_new_drafter_could_be_is_refused_beside_one_to_begin_with(run: CliRunner) -> None:
    keys = {"griffin": ("mlp_size", "64", "704"), "moa": ("lsa", "false", "true")}
    for method, (key, value, kept) in keys.items():
        given = f"--init={MODELS / method}", f"--set={key}={value}"
        words = f"the recipe's key '{key}' is {value}, but the drafter of --init has {kept}, which it keeps; leave out"
        assert words in refused(run, *command(*given, method=method))


def test_the_plan_of_each_method_says_what_is_kept_of_the_target(run: CliRunner) -> None:
    kept = {"griffin": "512 B per token: the target's last hidden", "eagle3": "2048 B per token: the inputs of three"}
    kept["dflash"] = kept["dspark"] = "3072 B per token: the outputs of five"
    kept["moa"] = "0 B none are kept: the target runs"
    for method, words in kept.items():
        done = run.invoke(app, command("--dry-run", method=method))
        assert done.exit_code == 0, done.output
        assert words in " ".join(done.output.split())


def test_a_target_beside_the_training_bounds_what_is_on_the_disk(run: CliRunner) -> None:
    bounds = ("--samples=100000", "--max-length=512", "--dry-run")
    shown = [" ".join(run.invoke(app, command(*bounds, *more)).output.split()) for more in ((), ("--stream",))]
    assert "of the target, once;" in shown[0]
    assert "of the target, once, and once more in every epoch;" in shown[1]
    # Only the four rows of the file are counted in the first, which is less than the bound.
    plan = plans.streamed_tokens(settings(stream=True, max_length=512), 10**9)
    assert plan == 12 * 2**16 + 1000 * 512


def test_a_training_that_keeps_no_features_cannot_stream_them(run: CliRunner) -> None:
    assert "--stream is for methods that keep features of the target" in refused(
        run, *command("--stream", method="moa")
    )


@pytest.mark.parametrize(("devices", "processes", "fits"), [(0, 2, True), (8, 6, True), (8, 7, False), (1, 1, False)])
def test_the_target_needs_gpus_of_its_own_beside_the_training(devices: int, processes: int, fits: bool) -> None:
    asked = settings(stream=True, tensor_parallel=2 if devices == 8 else 1)
    if fits:
        check_stream(asked, processes, devices)
        return
    with pytest.raises(ConfigurationError, match=rf"^--stream needs a GPU for each .* but {devices} are here\.$"):
        check_stream(asked, processes, devices)


def test_training_has_the_gpus_that_the_target_leaves(run: CliRunner) -> None:
    assert default_processes(8, {"stream": False, "tensor_parallel": 2}, packs=24) == 8
    assert default_processes(8, {"stream": True, "tensor_parallel": 2}, packs=24) == 6
    assert default_processes(0, {"stream": True, "tensor_parallel": 1}, packs=4) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "recipe"), [(name, recipe) for name, recipes in RECIPES.items() for recipe in recipes.named]
)
def test_the_default_number_of_processes_shares_the_default_step(name: str, recipe: str, stream: bool) -> None:
    how = read_recipe(name, recipe, [])
    for devices in range(9):
        count = default_processes(devices, {"stream": stream, "tensor_parallel": 1}, how.packs)
        assert how.packs_of_each(count) * count == how.packs
        assert count <= max(1, devices - stream)


def test_a_cluster_needs_ray(run: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "ray" else found(name))
    assert "the Python package ray is not installed" in refused(run, *command("--ray=auto"))


def test_one_that_can_be_is_not(run: CliRunner) -> None:
    assert run.invoke(app, command("--dry-run", "--licence=", "--processes=2", "--set=packs=2")).exit_code == 0


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("gone.jsonl", None, "--data is 'gone.jsonl', which is neither a file nor a folder."),
        ("notes.txt", "text", "expected a name that ends in"),
        ("empty.jsonl", "", "which is empty."),
        ("hub:a/b/c", None, "expected hub:NAME or hub:NAME:SPLIT."),
    ],
)
def test_data_that_are_not_there_are_refused(name: str, content: str | None, expected: str, run: CliRunner) -> None:
    if content is not None:
        Path(name).write_text(content)
    assert expected in refused(run, *command(data=name))


def damaged(change: Callable[[Path], object]) -> str:
    folder = Path("target").absolute()
    shutil.copytree(TARGET, folder)
    change(folder)
    return str(folder)


def edit_config(**values: object) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return edit


TARGETS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "is not valid JSON"),
    "no tokenizer": (
        lambda folder: [(folder / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")],
        "has no tokenizer that can be read",
    ),
    "cut weights": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 9),
        "is truncated or damaged: its tensors cannot be read",
    ),
    "a drafter": (edit_config(speculators_config={}), "which is itself a drafter"),
    "another architecture": (edit_config(kv_lora_rank=64, index_topk=8), "sparse latent attention"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_that_cannot_be_is_refused(name: str, run: CliRunner) -> None:
    change, expected = TARGETS[name]
    assert expected in refused(run, *command(target=damaged(change)))


def test_a_target_that_is_not_there_is_refused(run: CliRunner) -> None:
    assert "--target is './gone', which is neither a directory nor a hub id" in refused(run, *command(target="./gone"))


def test_a_folder_that_is_not_of_a_run_is_refused(run: CliRunner) -> None:
    assert "which has files but no plan.json" in refused(run, *command(output="."))
    Path("file").touch()
    assert "which is a file; expected a folder." in refused(run, *command(output="file"))


def test_a_folder_in_which_another_command_works_is_refused(run: CliRunner, tmp_path: Path) -> None:
    Path("run").mkdir()
    with locked(tmp_path / "run"):
        assert "in which another training is running" in refused(run, *command())


def test_a_disk_that_is_too_small_is_refused_before_the_target_is_loaded(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    assert "but features of up to 4092 tokens take" in refused(run, *command("--dry-run"))
    assert "fewer --samples or --tokens" in refused(run, *command())


def test_an_unknown_method_is_a_mistake_of_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_specext", "train", "swift"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_plan_loads_no_vllm(tmp_path: Path) -> None:
    program = (
        "import sys; from vllm_specext.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "print('vllm' in sys.modules)"
    )
    words = command("--dry-run", data=str(chats(tmp_path, CHATS)), output=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_without_vllm_there_is_a_plan_and_then_a_sentence(run: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == "vllm" else True)
    assert run.invoke(app, command("--dry-run")).exit_code == 0
    assert "the Python package vllm is not installed: pip install" in refused(run, *command())
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == "accelerate" else True)
    assert 'accelerate is not installed: pip install "vllm-specext[train]".' in refused(run, *command("--dry-run"))
