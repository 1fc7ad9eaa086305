"""Sets of skipped sub-layers, with those that the paper's authors ship (skip_layers.json of their repository)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.swift.search.skip_set import SkipSet, num_skipped, num_variables

# fmt: off
SHIPPED = {
    "llama-2-13b on CNN/DM": (40, 0.45, SkipSet(
        40,
        (2, 5, 6, 10, 11, 14, 15, 20, 22, 23, 24, 25, 26, 27, 28, 30, 32, 33, 34, 35),
        (9, 11, 14, 15, 19, 20, 24, 25, 26, 27, 28, 29, 30, 31),
    )),
    "llama-2-13b-chat on CNN/DM": (40, 0.45, SkipSet(
        40,
        (7, 10, 14, 15, 20, 23, 24, 25, 26, 27, 29, 30, 32, 34, 35, 36, 37, 38),
        (7, 8, 9, 10, 12, 14, 16, 20, 24, 25, 29, 30, 31, 32, 33, 35),
    )),
    "codellama-13b on HumanEval": (40, 0.45, SkipSet(
        40,
        (7, 10, 11, 13, 14, 19, 20, 22, 28, 29, 30, 31, 33, 34),
        (7, 8, 9, 10, 11, 13, 14, 15, 18, 19, 20, 21, 25, 26, 27, 28, 30, 31, 33, 34),
    )),
    "codellama-34b on HumanEval": (48, 0.5, SkipSet(
        48,
        (8, 10, 11, 12, 19, 20, 21, 24, 27, 29, 31, 32, 33, 34, 35, 36, 37, 38, 40, 41, 42, 46),
        (6, 8, 9, 10, 11, 13, 16, 18, 19, 20, 22, 23, 25, 26, 27, 30, 31, 32, 33, 36, 38, 41, 43, 44),
    )),
    "llama-2-70b on CNN/DM": (80, 0.5, SkipSet(
        80,
        (8, 9, 14, 15, 17, 18, 19, 21, 22, 25, 26, 27, 28, 29, 30, 31, 32, 35, 36, 38, 39, 43, 45, 48, 51, 53, 54, 56,
         57, 61, 62, 63, 65, 66, 69, 70, 71, 73, 74, 77, 78),
        (3, 9, 12, 13, 14, 15, 16, 18, 22, 26, 27, 29, 30, 39, 41, 42, 44, 46, 49, 50, 51, 52, 53, 54, 55, 56, 57, 60,
         62, 63, 64, 66, 69, 71, 72, 75, 76),
    )),
}
# fmt: on


@pytest.mark.parametrize(("layers", "ratio", "shipped"), SHIPPED.values(), ids=SHIPPED)
def test_shipped_sets_have_the_size_that_their_ratio_says(layers: int, ratio: float, shipped: SkipSet) -> None:
    assert len(shipped) == num_skipped(layers, ratio)


@pytest.mark.parametrize(("layers", "ratio", "shipped"), SHIPPED.values(), ids=SHIPPED)
def test_shipped_sets_survive_the_way_through_the_variables(layers: int, ratio: float, shipped: SkipSet) -> None:
    assert SkipSet.of(layers, shipped.variables) == shipped
    assert len(shipped.variables) == len(shipped)


def test_the_first_variables_are_attention_and_the_others_mlps() -> None:
    assert SkipSet.of(5, [0, 2, 3]) == SkipSet(5, attention=(1, 3), mlp=(1,))
    assert SkipSet.of(5, range(6)) == SkipSet(5, (1, 2, 3), (1, 2, 3))
    assert SkipSet.of(5, []) == SkipSet(5, (), ())


@settings(max_examples=40)
@given(st.integers(3, 60), st.randoms(use_true_random=False))
def test_variables_and_sets_are_one_to_one(layers: int, rng) -> None:
    variables = rng.sample(range(num_variables(layers)), rng.randint(0, num_variables(layers)))
    skipped = SkipSet.of(layers, variables)
    assert skipped.variables == tuple(sorted(variables))
    assert {0, layers - 1}.isdisjoint(skipped.attention + skipped.mlp)


def test_the_uniform_set_skips_the_odd_layers_but_never_the_last() -> None:
    assert SkipSet.uniform(8) == SkipSet(8, (1, 3, 5), (1, 3, 5))
    assert len(SkipSet.uniform(40)) == 38
    assert SkipSet.uniform(3) == SkipSet(3, (1,), (1,))


@pytest.mark.parametrize(
    ("layers", "ratio", "expected"), [(40, 0.45, 34), (48, 0.5, 46), (80, 0.5, 78), (52, 0.29, 29)]
)
def test_the_number_skipped_is_the_ratio_rounded_down(layers: int, ratio: float, expected: int) -> None:
    assert num_skipped(layers, ratio) == expected


@pytest.mark.parametrize(
    ("layers", "ratio"), [(12, 0.0), (12, 1.0), (12, -0.5), (12, 0.049), (3, 0.45), (12, float("nan"))]
)
def test_ratios_that_skip_nothing_or_everything_are_refused_by_name(layers: int, ratio: float) -> None:
    with pytest.raises(ConfigurationError, match=r"'swift_skip_ratio' is .* at least 0\.0?5?"):
        num_skipped(layers, ratio)


@pytest.mark.parametrize(
    ("attention", "mlp", "message"),
    [
        ((0, 2), (), "attention layers include 0"),
        ((), (1, 7), "MLP layers include 7"),
        ((-1,), (), "include -1"),
        ((2, 1), (), "ascending"),
        ((), (3, 3), "distinct"),
    ],
)
def test_sets_that_no_draft_may_have_are_refused(attention: tuple, mlp: tuple, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SkipSet(8, attention, mlp)


def test_targets_without_a_layer_to_skip_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="has 2 layers"):
        SkipSet.uniform(2)


def test_a_set_reads_as_ranges() -> None:
    assert str(SkipSet(9, (1, 2, 3, 5), ())) == "attention 1-3 5; MLP none"
