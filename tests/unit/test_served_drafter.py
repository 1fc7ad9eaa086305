"""What ``vllm serve DRAFTER`` stands for, from the drafter's ``config.json`` and the user's keys."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from vllm_specext.cli import launch
from vllm_specext.engine.hooks import served_drafter as engine
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS
from vllm_specext.served_drafter import Served, of_folder, resolve, served_keys, write

CHAIN = {"num_speculative_tokens": 4, "tree-top-k": 1}


def folder(path: Path, config: dict[str, Any]) -> str:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return folder(tmp_path / "models" / "target", {"model_type": "llama"})


@pytest.fixture
def drafter(tmp_path: Path, target: str) -> str:
    return folder(tmp_path / "models" / "drafter", served_keys("griffin", "../target"))


def change(drafter: str, path: str, value: Any) -> dict[str, Any]:
    """The drafter's ``config.json`` with another value; ``None`` takes the key away."""
    config: Any = json.loads((Path(drafter) / "config.json").read_text())
    place = config
    *outer, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in outer:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return config


def refusal(drafter: str, config: dict[str, Any], given: Any = None) -> str:
    with pytest.raises(ConfigurationError) as raised:
        resolve(drafter, config, given)
    message = str(raised.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("method", "tokens"), [("griffin", 59), ("eagle3-tree", 59), ("mtp-tree", 24), ("tli", 5)])
def test_vllm_reads_method_and_default_length_from_what_is_written(method: str, tokens: int, tmp_path: Path) -> None:
    from vllm.transformers_utils.configs.speculators.base import SpeculatorsConfig

    path = Path(folder(tmp_path / "drafter", {"hidden_size": 8}))
    write(path, method, "org/target")
    config = json.loads((path / "config.json").read_text())
    found = SpeculatorsConfig.extract_vllm_speculative_config(config)
    assert found == {"method": method, "num_speculative_tokens": tokens}
    assert config["hidden_size"] == 8
    assert of_folder(str(path), None) == Served("org/target", {**found, "model": str(path)})


def test_the_target_is_the_drafters_neighbour_from_everywhere(
    drafter: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere" / "deeper"
    folder(elsewhere.parent / "target", {})  # which is ../target from there
    for place, name in ((tmp_path, "models/drafter"), (Path(drafter), "."), (tmp_path / "models", "./drafter")):
        monkeypatch.chdir(place)
        assert of_folder(name, None) == Served(
            target, {"method": "griffin", "model": name, "num_speculative_tokens": 59}
        )
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    served = of_folder(drafter, None)
    assert served is not None
    assert served.target == target


def test_a_target_may_be_absolute_seen_from_the_current_directory_and_on_the_hub(
    drafter: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (target, "models/target", "org/target", "target-of-nobody", "s3://bucket/some/target"):
        served = resolve(drafter, served_keys("griffin", name), None)
        assert served is not None
        assert served.target == name


def test_the_users_keys_count_and_may_repeat_method_and_drafter(drafter: str) -> None:
    given = {"method": "griffin", "model": f"{drafter}/../drafter", **CHAIN}
    for users in (given, CHAIN):
        served = of_folder(drafter, users)
        assert served is not None
        assert served.speculative == {
            "method": "griffin",
            "model": drafter,
            "num_speculative_tokens": 4,
            "tree_top_k": 1,
        }


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("eagle3", None),
        ("eagle3", {"method": "eagle3"}),
        ("eagle3", {"num_speculative_tokens": 3}),
        ("eagle3", 5),
        ("dflash", {"method": "eagle3"}),
        ("not-yet-known", None),
        (["griffin"], None),
        (None, None),
    ],
)
def test_types_and_methods_of_others_are_left_to_vllm(drafter: str, kind: Any, given: Any) -> None:
    assert resolve(drafter, change(drafter, "speculators_model_type", kind), given) is None


@pytest.mark.parametrize("given", [None, {"method": "griffin", "model": "a/b"}, 5])
def test_a_model_without_the_keys_is_left_to_vllm(target: str, given: Any, tmp_path: Path) -> None:
    assert of_folder(target, given) is None
    assert of_folder("org/model", given) is None
    assert of_folder(str(tmp_path), given) is None


@pytest.mark.parametrize("kind", ["eagle3", "eagle", "peagle", "dflash", "dflash2", "dspark"])
def test_vllms_eagle_drafters_get_trees_on_demand_and_not_as_many_nodes_as_a_chain_has(
    drafter: str, target: str, kind: str
) -> None:
    method = f"{kind.removesuffix('2')}-tree"
    config = change(drafter, "speculators_model_type", kind)
    config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 3
    assert resolve(drafter, config, {"method": method}) == Served(target, {"method": method, "model": drafter})
    served = resolve(drafter, config, {"method": method, "num_speculative_tokens": 24})
    assert served is not None
    assert served.speculative["num_speculative_tokens"] == 24


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("griffin", "moa"),
        ("griffin", "eagle3"),
        ("griffin", "grifin"),
        ("eagle3-tree", "eagle3"),
        ("eagle3", "griffin"),
        ("eagle3", "eagle-tree"),
        ("eagle", "eagle3-tree"),
        ("peagle", "eagle3-tree"),
        ("not-yet-known", "griffin"),
        (None, "griffin"),
    ],
)
def test_a_contradiction_about_the_method_is_refused(drafter: str, kind: str | None, given: str) -> None:
    message = refusal(drafter, change(drafter, "speculators_model_type", kind), {"method": given})
    assert f"{drafter}/config.json: speculators_model_type is {kind!r}" in message
    assert f"'method' is {given!r}" in message


@pytest.mark.parametrize(
    ("path", "value", "fragments"),
    [
        ("speculators_config.proposal_methods", None, ["lacks speculators_config.proposal_methods"]),
        ("speculators_config.proposal_methods", [], ["speculators_config.proposal_methods is []", "at least 1"]),
        ("speculators_config.proposal_methods.0", {}, ["lacks speculators_config.proposal_methods.0.speculative_tok"]),
        ("speculators_config.proposal_methods.0.speculative_tokens", "59", ["speculative_tokens is '59'", "integer"]),
        ("speculators_config.proposal_methods.0.speculative_tokens", True, ["speculative_tokens is True", "integer"]),
        ("speculators_config.proposal_methods.0.speculative_tokens", 0, ["speculative_tokens is 0", "equal to 1"]),
        ("speculators_config.proposal_methods.0.speculative_tokens", 257, ["speculative_tokens is 257", "256"]),
        ("speculators_config.verifier", None, ["lacks speculators_config.verifier"]),
        ("speculators_config.verifier.name_or_path", None, ["lacks speculators_config.verifier.name_or_path"]),
        ("speculators_config.verifier.name_or_path", 5, ["name_or_path is 5", "string"]),
        ("speculators_config.verifier.name_or_path", "", ["name_or_path is ''", "at least 1 character"]),
        ("speculators_config.verifier.name_or_path", "../gone", ["name_or_path is '../gone'", "neither there nor"]),
        ("speculators_config.verifier.name_or_path", "/gone", ["name_or_path is '/gone'", "neither there nor"]),
        ("speculators_config.verifier.name_or_path", "a/b/c", ["name_or_path is 'a/b/c'", "hub id (owner/name)"]),
        ("speculators_config.verifier.name_or_path", "/" + 5000 * "x", ["name_or_path is '/xxx", "neither there"]),
        ("speculators_config.verifier.name_or_path", "../a\0b", ["name_or_path is '../a\\x00b'", "neither there"]),
        ("speculators_config.verifier.name_or_path", ".", ["name_or_path is '.'", "itself a drafter"]),
        ("speculators_config", [], ["speculators_config is []", "speculators"]),
        ("transformer_layer_config", None, ["lacks transformer_layer_config"]),
        ("transformer_layer_config", [], ["transformer_layer_config is []", "dictionary"]),
        ("speculators_model_type", "swift", ["speculators_model_type is 'swift'", "no drafter"]),
    ],
)
def test_a_wrong_key_is_a_sentence_that_names_it(drafter: str, path: str, value: Any, fragments: list[str]) -> None:
    message = refusal(drafter, change(drafter, path, value))
    for fragment in (f"{drafter}/config.json", *fragments):
        assert fragment in message
    assert len(message) < len(drafter) + 300


def test_a_damaged_target_and_another_drafter_as_key_are_refused(drafter: str, target: str) -> None:
    config = json.loads((Path(drafter) / "config.json").read_text())
    message = refusal(drafter, config, {"model": "org/drafter"})
    assert "'model' is 'org/drafter'" in message
    assert repr(drafter) in message
    assert "--speculative-config is 5" in refusal(drafter, config, 5)
    (Path(target) / "config.json").write_text("{")
    assert f"{target}/config.json is not valid JSON" in refusal(drafter, config)


def test_what_is_wrong_with_a_served_drafter_is_said_before_vllm_is_loaded(drafter: str) -> None:
    launch.check([drafter])
    launch.check([drafter, '--speculative-config={"num_speculative_tokens": 4, "tree_top_k": 1}'])
    launch.check([drafter, '--speculative-config={"method": "griffin"}'])
    for given, fragment in (('{"method": "moa"}', "'method' is 'moa'"), ('{"tree_topk": 1}', "'tree_topk' is unknown")):
        with pytest.raises(ConfigurationError, match=fragment):
            launch.check([drafter, f"--speculative-config={given}"])
    (Path(drafter) / "config.json").write_text(json.dumps(served_keys("griffin", "../gone")))
    with pytest.raises(ConfigurationError, match=r"name_or_path is '\.\./gone'"):
        launch.check([drafter])


@pytest.mark.parametrize("model", ["foreign_bpe", "foreign_bytes", "target"])
def test_bundled_models_that_can_be_served_alone_are_no_served_drafters(model: str) -> None:
    assert of_folder(str(MODELS / model), None) is None


def overridden(original: Any, model: str, given: Any = None, tokenizer: str | None = None) -> Any:
    """What is served, asked for as vLLM does."""
    return engine.override_with_drafter(original)(
        model=model,
        tokenizer=tokenizer,
        revision=None,
        trust_remote_code=False,
        vllm_speculative_config=given,
        hf_token=None,
    )


def test_a_model_without_the_keys_is_read_once(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_read_config", None)
    given = {"method": "griffin", "model": "a/b"}
    for users in (given, None):
        assert overridden(lambda *args: (args[0], "vLLM's", args[4]), target, users) == (target, "vLLM's", users)


def test_what_vllm_says_of_its_own_types_stands(drafter: str) -> None:
    keys = change(drafter, "speculators_model_type", "eagle3")
    (Path(drafter) / "config.json").write_text(json.dumps(keys))
    answer = ("target", "target", {"method": "eagle3"})
    assert overridden(lambda *_: answer, drafter) is answer

    def refuse(*_: Any) -> Any:
        raise ValueError("Invalid speculators config structure")

    with pytest.raises(ValueError, match="Invalid speculators config structure") as raised:
        overridden(refuse, drafter)
    assert not isinstance(raised.value, ConfigurationError)


@pytest.mark.parametrize("tokenizer", [None, "tokenizer"])
def test_vllms_own_function_is_overridden_for_ours(drafter: str, target: str, tokenizer: str | None) -> None:
    from vllm.transformers_utils.config import maybe_override_with_speculators

    found = overridden(maybe_override_with_speculators, drafter, {"tree_top_k": 1}, tokenizer)
    keys = {"method": "griffin", "model": drafter, "num_speculative_tokens": 59, "tree_top_k": 1}
    assert found == (target, tokenizer, keys)
    (Path(drafter) / "config.json").write_text(json.dumps(change(drafter, "speculators_config.verifier", None)))
    with pytest.raises(ConfigurationError, match=r"lacks speculators_config\.verifier"):
        overridden(maybe_override_with_speculators, drafter)


def test_a_target_that_the_hub_does_not_give_or_that_is_a_drafter_there_is_refused(
    drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = served_keys("griffin", "org/target")
    (Path(drafter) / "config.json").write_text(json.dumps(keys))
    on_the_hub: dict[str, Any] = {}

    def read(model: str, *_: Any) -> dict[str, Any]:
        if model == drafter:
            return keys
        if not on_the_hub:
            raise OSError("We could not connect") from LocalEntryNotFoundError("not there")
        return on_the_hub

    monkeypatch.setattr(engine, "_read_config", read)

    def answer(*_: Any) -> Any:
        return "org/target", "org/target", {}

    with pytest.raises(ConfigurationError, match=r"'org/target'.* cannot be fetched from the hub \(LocalEntryNot"):
        overridden(answer, drafter)
    on_the_hub |= keys
    with pytest.raises(ConfigurationError, match="'org/target', which is itself a drafter"):
        overridden(answer, drafter)
    del on_the_hub["speculators_config"]
    assert overridden(answer, drafter)[0] == "org/target"
