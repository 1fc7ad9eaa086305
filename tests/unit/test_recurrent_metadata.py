"""Where recurrent states stay for a cache of prefixes, and how large they are."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM

from tests.engine.hybrid import RECURRENT
from vllm_specext.engine.config import SpecExtConfig
from vllm_specext.engine.recurrent.metadata import (
    OneStateBuilder,
    OneStateMetadata,
    caches_prefixes,
    find_slots,
)
from vllm_specext.engine.recurrent.state_pages import without_drafts
from vllm_specext.errors import ConfigurationError


def config(mode: str, drafted: int) -> Any:
    return SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode=mode), num_speculative_tokens=drafted)


def test_states_stay_where_prefixes_are_cached() -> None:
    assert caches_prefixes(config("align", 59), 64)
    assert not caches_prefixes(config("none", 59), 32)


@pytest.mark.parametrize(
    ("mode", "drafted", "said"),
    [("align", 64, "'num_speculative_tokens' is 64, .*--no-enable-prefix-caching"), ("all", 8, "mamba-cache-mode")],
)
def test_what_cannot_be_kept_is_refused(mode: str, drafted: int, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        caches_prefixes(config(mode, drafted), 64)


def test_our_drafts_make_no_state_larger() -> None:
    """vLLM's own make it larger, and have to."""
    text = SimpleNamespace(**RECURRENT)

    def shape(speculative_config: Any) -> Any:
        config = SimpleNamespace(
            speculative_config=speculative_config,
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
            model_config=SimpleNamespace(hf_config=text, hf_text_config=text),
        )
        made: list[Any] = []
        size = without_drafts(
            lambda seen, backend: made.append(Qwen3NextForCausalLM.get_mamba_state_shape_from_config(seen))
        )
        size(config, None)
        assert config.speculative_config is speculative_config
        return made

    ours, theirs = SpecExtConfig.__new__(SpecExtConfig), SimpleNamespace(num_speculative_tokens=8)
    assert shape(ours) == shape(None) != shape(theirs)


def metadata(block: int | None, table: torch.Tensor) -> OneStateMetadata:
    slots = torch.full((2, 8), -1, dtype=torch.int32)[:, : len(table)]
    return OneStateMetadata(drafted=len(table), table=table, block=block, slots_and_ends=slots)


def test_slots_are_those_of_the_blocks_of_last_and_next_tokens() -> None:
    """Requests with 0, 3, 4 and 7 tokens before rows for 5, 2, 4 and 1 more; blocks of 4 tokens."""
    starts = torch.tensor([0, 5, 7, 11, 12], dtype=torch.int32)
    seq_lens = torch.tensor([5, 5, 8, 8], dtype=torch.int32)
    tables = torch.arange(24, dtype=torch.int32).view(2, 4, 3)
    groups = [metadata(4, table) for table in tables]
    find_slots(groups, starts, seq_lens)
    for group, table in zip(groups, tables, strict=True):
        assert group.slots.tolist() == [table[0, 1], table[1, 1], table[2, 1], table[3, 1]]
        assert group.ends.tolist() == [table[0, 0], table[1, 0], table[2, 1], table[3, 1]]
        assert group.rows_to_ends is not None
        assert group.rows_to_ends.tolist() == [4, 1, 4, 1]


def test_a_request_has_one_slot_where_no_prefixes_are_cached() -> None:
    table = torch.arange(6, dtype=torch.int32).view(2, 3)
    group = metadata(None, table)
    find_slots([group], torch.tensor([0, 5, 7]), torch.tensor([50, 20]))
    assert group.slots.tolist() == [0, 3]
    assert group.rows_to_ends is None


def test_another_group_has_the_same_step_and_its_own_slots() -> None:
    tables = torch.arange(18, dtype=torch.int32).view(2, 3, 3)
    first = metadata(4, tables[0, :2])
    first.others = "vLLM's"
    builder = OneStateBuilder.__new__(OneStateBuilder)
    builder._slots = torch.zeros(2, 8, dtype=torch.int32)
    found = builder.with_table(first, tables[1], lambda others, table: (others, table.tolist()))
    assert (found.drafted, found.block, found.others) == (2, 4, ("vLLM's", [[15, 16, 17]]))
    assert found.table.tolist() == tables[1, :2].tolist()
    find_slots([first, found], torch.tensor([0, 5, 7]), torch.tensor([5, 5]))
    assert first.slots.tolist() == [1, 4]
    assert found.slots.tolist() == builder._slots[0, :2].tolist() == [10, 13]
