"""What the check concludes, what the report shows, and which held-out prompts are asked."""

from pathlib import Path
from typing import Any

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Answer, Turn
from vllm_specext.target_stages.held_out import Asked, choose, expected
from vllm_specext.target_stages.target_engine import device_groups
from vllm_specext.target_stages.verdict import Conditions, Simulated, judge
from vllm_specext.training.data.row import make_row
from vllm_specext.training.pipeline.devices import visible_devices
from vllm_specext.training.pipeline.progress import LogLines, described
from vllm_specext.training.pipeline.report import loss_figure, write_report

PLAIN = [[1, 2, 3], [4, 5, 6]]
LOG = [
    {
        "stage": stage, "step": step, "loss": 1.5, "token": [4.0] * stage, "feature": [0.1] * stage,
        "counted": [1.0] * stage, "valid/tau_chain": 1.5, "steps_per_s": 2.0,
    }
    | {f"valid/accept/depth_{depth}": 0.2 for depth in (1, 2)}
    for stage in (1, 2)
    for step in (10, 20)
]  # fmt: skip


def drafted(tokens: list[list[int]] = PLAIN, accepted: tuple[float, ...] = (60, 20)) -> Turn:
    return Turn([Answer(own, 0.1, 0.2, 4) for own in tokens], 1.0, Speculation(100, 200, accepted))


def verdict(
    turn: Turn, depths: tuple[int, int] = (60, 20), rounded: tuple[int, int] | None = None, **conditions: Any
) -> dict[str, Any]:
    other = None if rounded is None else Simulated(100, rounded)
    given = {"dtype": "float32", "same_template": True, "flags": {}} | conditions
    return judge(PLAIN, turn, Simulated(100, depths), other, Conditions(**given))


def test_a_drafter_that_does_as_simulated_is_good() -> None:
    found = verdict(drafted())
    assert found["refused"] is None
    assert found["served"] == found["simulated"]
    assert found["served"]["tokens_per_verification"] == 1.8
    assert verdict(drafted(), (64, 24))["refused"] is None


def test_other_tokens_are_refused_in_float32_and_counted_elsewhere() -> None:
    other = drafted([[1, 2, 3], [4, 5, 7]])
    assert "1 of 2 answers with drafts have other tokens" in verdict(other)["refused"]
    found = verdict(other, dtype="bfloat16")
    assert (found["refused"], found["identical_answers"]) == (None, 1)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"same_template": False}, "the target's chat template is another one"),
        ({"dtype": "bfloat16", "rounded": (60, 20)}, "the dtype makes the difference, as a simulation in bfloat16"),
        ({"dtype": "bfloat16", "rounded": (80, 20)}, "neither the chat template nor the dtype"),
        ({}, "neither the chat template nor the dtype"),
    ],
)
def test_acceptance_unlike_the_simulated_is_refused_with_its_cause(changes: dict[str, Any], cause: str) -> None:
    refused = verdict(drafted(), (66, 20), **changes)["refused"]
    assert "differ by 0.06 between an engine and the simulation" in refused
    assert cause in refused


def test_a_drafter_that_nothing_is_accepted_of_is_useless() -> None:
    refused = verdict(drafted(accepted=(20, 5)), (20, 5))["refused"]
    assert "brings 1.25 tokens per verification, but at least 1.3 are expected" in refused
    assert verdict(drafted(accepted=()), (0, 0))["served"]["accepted_per_depth"] == [0, 0]


def test_flags_of_the_template_are_told() -> None:
    assert '{"thinking": false}' in verdict(drafted(), flags={"thinking": False})["remarks"][1]


def test_prompts_end_where_the_first_answer_begins_and_leave_room() -> None:
    rows = [make_row(range(100, 100 + size + 5), [False] * size + [True] * 5, "a") for size in (10, 20, 90)]
    asked = choose(rows, 100, 5)
    assert [len(prompt) for prompt in asked.prompts] == [10, 20]
    assert asked.tokens == 100 - 20 - 7
    assert choose(rows, 100, 15).tokens == 100 - 20 - 17
    with pytest.raises(ConfigurationError, match="no held-out prompt leaves room"):
        choose(rows[2:], 96, 5)


def test_answers_end_at_a_stop_and_loops_are_left_out() -> None:
    asked = Asked([[1], [2], [3]], tokens=60)
    straight, loop = list(range(100, 170)), [5, 6] * 35
    found = expected(asked, [straight, loop, [*straight[:4], 0, *straight[5:]]], {0})
    assert [(one.prompt, len(one.answer)) for one in found] == [([1], 60), ([3], 5)]
    assert found[1].answer[-1] == 0
    assert len(found[1].longer) == 70
    assert len(expected(Asked([[2]], 60), [loop], {0})) == 1


def test_the_report_has_its_figures(tmp_path: Path) -> None:
    write_report(
        tmp_path, LOG, verdict(drafted()), {part: {"rows": 3, "loss_tokens": 9} for part in ("train", "valid")}
    )
    text = (tmp_path / "report.md").read_text()
    assert "| 1 | 0.600 | 0.600 |" in text
    assert "1.80 tokens per verification in 100 verifications" in text
    for name in ("losses.png", "acceptance.png"):
        assert name in text
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_losses_that_a_method_does_not_have_have_no_figure() -> None:
    without = [{name: value for name, value in entry.items() if name != "feature"} for entry in LOG]
    titles = [[axes.get_title() for axes in loss_figure(log).axes] for log in (LOG, without)]
    others = ["token loss, nats", "positions that count"]
    assert titles == [[others[0], "feature loss", others[1]], others]


def test_the_only_loss_of_a_method_has_a_line_for_each_token_of_a_block() -> None:
    (axes,) = loss_figure([{"stage": 1, "step": step, "token": [5.0, 6.0 / step]} for step in (1, 2)]).axes
    assert [line.get_label() for line in axes.get_lines()] == ["token 1", "token 2"]
    of_dspark = {"token": [5.0, 6.0], "accepted": [0.5, 0.25], "confidence": [0.7, 0.7]}
    figure = loss_figure([{"stage": 1, "step": 1, **of_dspark}])
    assert [axes.get_title() for axes in figure.axes] == [
        "token loss, nats", "accepted of drawn tokens", "confidence loss, nats",
    ]  # fmt: skip
    assert [line.get_label() for line in figure.axes[1].get_lines()] == ["token 1", "token 2"]


def test_the_log_is_told_in_words_as_it_grows_and_from_the_front_when_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = LogLines(path)
    assert lines() == []
    path.write_text('{"stage": 1, "step": 10, "loss": 1.25}\n{"stage": 1,')
    assert lines() == ["stage 1, step 10, loss 1.250"]
    with path.open("a") as file:
        file.write(' "step": 20}\n')
    assert lines() == ["stage 1, step 20"]
    path.write_text('{"stage": 1, "step": 11}\n')
    assert lines() == ["stage 1, step 11"]


def test_an_entry_in_words() -> None:
    entry = LOG[-1] | {"data_wait": 0.25, "skipped": 3}
    assert described(entry) == (
        "stage 2, step 20, loss 1.500, positions counted 100%, 100%, held out 1.50 tokens per verification, "
        "2 steps/s, 25% of the time waiting for data, 3 steps skipped"
    )


@pytest.mark.parametrize(
    ("given", "count", "each", "groups"),
    [
        (None, 0, 1, []),
        (None, 1, 1, ["0"]),
        (None, 8, 4, ["0,1,2,3", "4,5,6,7"]),
        (None, 3, 2, ["0,1"]),
        (None, 1, 2, []),
        ("", 2, 1, ["0", "1"]),
        ("6,7", 2, 1, ["6", "7"]),
        ("GPU-a, GPU-b,GPU-c", 3, 2, ["GPU-a,GPU-b"]),
    ],
)
def test_gpus_are_shared_out_in_groups(
    given: str | None, count: int, each: int, groups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert device_groups(visible_devices(count), each) == groups
