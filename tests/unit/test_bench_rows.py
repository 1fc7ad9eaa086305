"""What a benchmark makes of answers, times and counters, by hand-made ones."""

import math

import pytest

from vllm_specext.bench.rows import percentile, summarised, vllm_keys
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Answer, Turn

CHAIN = Speculation(10, 40, (8.0, 5.0, 2.0, 0.0))


def test_the_keys_are_those_of_vllm_bench_serve() -> None:
    assert vllm_keys(CHAIN) == {
        "spec_decode_acceptance_rate": 37.5,
        "spec_decode_acceptance_length": 2.5,
        "spec_decode_num_drafts": 10,
        "spec_decode_draft_tokens": 40,
        "spec_decode_accepted_tokens": 15,
        "spec_decode_per_position_acceptance_rates": [0.8, 0.5, 0.2, 0.0],
    }
    assert vllm_keys(Speculation()) == {}


def turn(duration: float, tokens: list[int] | None = None, drafts: Speculation = CHAIN) -> Turn:
    own = tokens or list(range(11))
    return Turn([Answer(own, 0.1, 1.1, 5), Answer(own, 0.3, 2.3, 7)], duration, drafts)


def test_a_speedup_is_the_median_of_the_ratios_to_the_plain_turn_beside_it() -> None:
    row = summarised([turn(2), turn(8), turn(3)], [turn(4), turn(8), turn(9)])
    assert (row["speedup_lowest"], row["speedup"], row["speedup_highest"]) == (1.0, 2.0, 3.0)
    assert row["rounds"] == 3
    assert row["output_throughput"] == round(22 / 3, 2)
    assert (row["output_throughput_lowest"], row["output_throughput_highest"]) == (2.75, 11.0)
    assert row["baseline_output_throughput"] == 2.75


def test_latencies_are_in_milliseconds_and_counts_add_up() -> None:
    row = summarised([turn(2), turn(2)], [turn(2), turn(2)])
    assert (row["mean_ttft_ms"], row["median_e2el_ms"]) == (200.0, 1700.0)
    assert (row["mean_tpot_ms"], row["median_tpot_ms"]) == (150.0, 150.0)
    assert (row["completed"], row["total_input_tokens"], row["total_output_tokens"]) == (4, 24, 44)
    assert row["request_throughput"] == 1.0
    assert row["spec_decode_num_drafts"] == 20
    assert row["spec_decode_acceptance_length"] == 2.5


def test_one_other_token_in_one_round_is_not_identical() -> None:
    plain = [turn(2), turn(2)]
    assert summarised([turn(2), turn(2)], plain)["identical"] is True
    assert summarised([turn(2), turn(2, [*range(10), 99])], plain)["identical"] is False


def test_an_answer_of_one_token_has_no_time_per_token_to_divide_by() -> None:
    assert Answer([1], 0.5, 0.5, 3).per_token == 0


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.5, 2.5), (0.99, 3.97), (1, 4)])
def test_percentiles_lie_between_values(share: float, value: float) -> None:
    assert math.isclose(percentile([1, 2, 3, 4], share), value)
    assert percentile([7], share) == 7
