"""What `methods` and `doctor` show, as a user runs them: nothing is cut, in a pipe or on 80 columns."""

import json
from dataclasses import asdict

import pytest

from tests.unit.terminal import COLUMNS, Ended, in_a_pipe, on_a_terminal
from vllm_specext.cli.doctor import change
from vllm_specext.cli.methods import refused_methods, refused_to
from vllm_specext.engine.changes.catalogue import catalogue
from vllm_specext.options.shown import keys_of
from vllm_specext.refusals import refused_to as refused_by_the_engine
from vllm_specext.registry import METHODS

COMMANDS = [("methods",), *(("methods", name) for name in METHODS), ("doctor",)]


@pytest.fixture(scope="module")
def doctor() -> Ended:
    return in_a_pipe("doctor")


@pytest.fixture(scope="module")
def methods() -> Ended:
    return in_a_pipe("methods")


def lines_with(text: Ended, *pieces: str) -> list[str]:
    return [line for line in text.stdout.splitlines() if all(piece in line for piece in pieces)]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_terminal_shows_the_words_of_a_pipe_in_lines_that_fit(arguments: tuple[str, ...]) -> None:
    terminal, pipe = on_a_terminal(*arguments), in_a_pipe(*arguments)
    assert terminal.status == pipe.status == 0, terminal.stderr + pipe.stderr
    assert terminal.stdout.split() == pipe.stdout.split()
    assert "…" not in pipe.stdout
    too_long = [line for line in terminal.stdout.splitlines() if len(line) > COLUMNS]
    assert [line for line in too_long if len(line.split()) > 1] == []
    assert max(map(len, pipe.stdout.splitlines())) > COLUMNS


def test_methods_has_a_line_for_each_method_and_each_refused_feature(methods: Ended) -> None:
    for method in METHODS.values():
        assert lines_with(methods, method.summary) == [f"  {method.name}: {method.summary}"]
    refusals = {refused for name in METHODS for refused in refused_to(name)}
    for refused in refusals:
        (line,) = lines_with(methods, f"  {refused.feature}: ")
        shown = [one.split(", because ") for one in line.removeprefix(f"  {refused.feature}: ").split("; ")]
        ((these, _),) = [entry for entry in shown if entry[1] == refused.reason]
        (who,) = [who for who in these.split(" and ") if who.startswith("draft trees of ") == refused.trees_only]
        names = list(METHODS) if who == "every method" else who.removeprefix("draft trees of ").split(", ")
        assert names == [name for name in METHODS if refused in refused_to(name)]
    assert len(methods.stdout.splitlines()) == len(METHODS) + len({refused.feature for refused in refusals}) + 3


@pytest.mark.parametrize("name", METHODS)
def test_methods_with_a_name_has_a_line_for_each_key_and_each_refusal(name: str) -> None:
    shown = in_a_pipe("methods", name)
    for key, entry in keys_of(METHODS[name].options).items():
        absent = "required" if entry.required else f"by default {entry.absent}"
        assert lines_with(shown, f"  {key} (") == [f"  {key} ({entry.allowed}; {absent}): {entry.meaning}"]
    for refused in refused_to(name):
        (line,) = lines_with(shown, f"  {refused.feature}, because {refused.reason}")
        assert ("chains" in line) == (refused.trees_only and name in ("griffin", "eagle3-tree", "eagle-tree", "moa"))
    assert len(lines_with(shown, ", because ")) == len(refused_to(name))


@pytest.mark.parametrize("name", METHODS)
def test_what_is_shown_to_be_refused_is_what_the_engine_refuses(name: str) -> None:
    refused = [tuple(one) for one in refused_by_the_engine(METHODS[name].declares)]
    assert refused_to(name) == refused


def test_refusals_of_a_feature_follow_each_other() -> None:
    features = [refused.feature for refused in refused_methods()]
    assert len(set(features)) == sum(a != b for a, b in zip([None, *features], features, strict=False))
    assert len(set(features)) < len(features)


def test_a_method_that_does_not_exist_is_one_sentence_with_those_that_do() -> None:
    status, output, error = in_a_pipe("methods", "medusa")
    assert (status, output) == (1, "")
    assert error == f"error: NAME is 'medusa', but must be one of {', '.join(METHODS)}.\n"


def test_methods_as_json_has_everything() -> None:
    found = json.loads(in_a_pipe("methods", "--json").stdout)
    assert list(found) == list(METHODS)
    for name, method in METHODS.items():
        assert found[name]["summary"] == method.summary
        keys = found[name]["keys"]
        assert list(keys) == list(method.options.model_fields)
        required = {key for key, field in method.options.model_fields.items() if field.is_required()}
        assert {key for key, entry in keys.items() if entry["required"]} == required
        assert all(entry["meaning"] for entry in keys.values())
        assert (
            keys["num_speculative_tokens"]["default"] == method.options.model_fields["num_speculative_tokens"].default
        )
        assert found[name]["refused"] == [refused._asdict() for refused in refused_to(name)]
    assert json.loads(in_a_pipe("methods", "tli", "--json").stdout) == {"tli": found["tli"]}


def test_the_doctor_says_first_that_nothing_is_wrong_and_leaves_refusals_to_methods(doctor: Ended) -> None:
    lines = doctor.stdout.splitlines()
    assert lines[0] == "no problems found"
    assert "vllm-specext methods" in lines[-1]
    assert not any(refused.reason in doctor.stdout for refused in refused_methods())
    for patch in catalogue():
        (line,) = lines_with(doctor, f"  {patch.name}: ", f" {change(asdict(patch))[1]},")
        assert patch.why in line
        assert patch.until in line
        assert "which is there" in line


def test_the_doctors_json_is_alone_on_stdout_and_has_everything(doctor: Ended) -> None:
    status, output, _ = in_a_pipe("doctor", "--json")
    found = json.loads(output)
    assert (status, found["problems"]) == (0, [])
    assert [(patch["name"], patch["target"], patch["there"]) for patch in found["patches"]] == [
        (patch.name, patch.target, True) for patch in catalogue()
    ]
    facts = [found[part] for part in ("versions", "machine", "environment", "plugins", "vllm")]
    assert all(lines_with(doctor, f"  {name}: {fact}") for part in facts for name, fact in part.items())
