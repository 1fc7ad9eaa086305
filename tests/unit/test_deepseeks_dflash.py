"""DeepSeek's DFlash drafters are DSpark's without a Markov head: accepted by the one method, and not by the other."""

from pathlib import Path

import pytest

from tests.unit.eagle_folders import Config, write
from tests.unit.test_dflash_layouts import BLOCK, DSPARK, any_target, dflash, prepared  # noqa: F401 - a fixture
from vllm_specext.errors import ConfigurationError
from vllm_specext.options.stock import BlockOptions, DFlashTreeOptions, DSparkTreeOptions

WITHOUT_MARKOV: Config = DSPARK | {"markov_rank": 0, "enable_confidence_head": False}


def test_it_is_accepted_and_drafts_from_the_last_tokens_row(tmp_path: Path) -> None:
    made = prepared(write(tmp_path, WITHOUT_MARKOV, dflash()))
    assert made.overrides["eagle_aux_hidden_state_layer_ids"] == [2, 6, 10]
    assert made.overrides["sample_from_anchor"] is True
    assert isinstance(made.options, DFlashTreeOptions)
    assert made.options.tree_depth == BLOCK


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (DSPARK, DFlashTreeOptions, ["markov_rank is 4", "'dspark-tree'"]),
        (WITHOUT_MARKOV, DSparkTreeOptions, ["markov_rank is 0", "'dflash-tree'"]),
    ],
)
def test_each_method_names_the_other(
    config: Config, options: type[BlockOptions], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        prepared(write(tmp_path, config, dflash()), options)
    for word in words:
        assert word in str(raised.value)
