import inspect

import torch
from compare import assert_same, bodies
from hypothesis import given
from hypothesis import strategies as st
from steps import MAX_REQS, Step, steps
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

CPU = torch.device("cpu")
BLOCK_SIZES = [4, 8]
BLOCKS_PER_ROW = 16
REACHES = [0, 5]
"""Of the groups' sliding windows; the first has none."""
HIDES_PAGES = "num_computed_tokens" in inspect.signature(BlockTables.gather_block_tables).parameters
"""Whether pages before a sliding window are hidden, as from vLLM 0.33 on."""

writes = st.lists(
    st.tuples(st.integers(0, MAX_REQS - 1), st.integers(0, 3), st.lists(st.integers(0, 99), min_size=1, max_size=5)),
    max_size=6,
    unique_by=lambda write: write[0],
)


@given(writes, st.sampled_from([torch.int32, torch.int64, torch.float32]))
def test_staged_writes_reach_their_rows(staged: list, dtype: torch.dtype) -> None:
    def write() -> torch.Tensor:
        tensor = StagedWriteTensor((MAX_REQS, 8), dtype=dtype, device=CPU)
        for row, start, values in staged:
            tensor.stage_write(row, start, values)
        tensor.apply_write()
        return tensor.gpu

    expected = write()
    with bodies():
        assert_same(expected, write())


@given(writes)
def test_staged_elements_reach_a_vector(staged: list) -> None:
    def write() -> torch.Tensor:
        tensor = StagedWriteTensor(MAX_REQS, dtype=torch.int32, device=CPU)
        for row, _, values in staged:
            tensor.stage_write_elem(row, values[0])
        tensor.apply_write()
        return tensor.gpu

    expected = write()
    with bodies():
        assert_same(expected, write())


@given(steps(), st.integers(1, 2), st.integers(0, 2), st.booleans(), st.booleans())
def test_block_tables_and_slots(step: Step, groups: int, padding: int, enabled: bool, dummy: bool) -> None:
    """Also covers the write of several groups at once. A dummy request (slot -1) owns no block."""
    rows = step.tokens(groups, MAX_REQS, BLOCKS_PER_ROW).tolist()
    positions = torch.cat(
        [
            torch.arange(int(step.num_computed_tokens[slot]), int(step.num_computed_tokens[slot]) + length)
            for slot, length in zip(step.idx_mapping, step.query_start_loc.diff()[: step.num_reqs], strict=True)
        ]
    )
    padded = min(step.num_reqs + padding, MAX_REQS)
    num_tokens = step.num_tokens + padding

    def run() -> list[torch.Tensor]:
        tables = BlockTables(
            BLOCK_SIZES[:groups],
            MAX_REQS,
            num_tokens + 5,
            [BLOCKS_PER_ROW] * groups,
            CPU,
            slot_mapping_enabled=[enabled, True][:groups],
            **({"sliding_window_reach": REACHES[:groups]} if HIDES_PAGES else {}),
        )
        for slot in range(MAX_REQS):
            tables.append_block_ids(slot, tuple(rows[group][slot] for group in range(groups)), overwrite=True)
        tables.apply_staged_writes()
        computed = {"num_computed_tokens": step.num_computed_tokens} if HIDES_PAGES else {}
        gathered = tables.gather_block_tables(step.idx_mapping, padded, **computed)
        gathered = tuple(map(torch.clone, gathered))
        # After a larger batch, and to others' tables.
        fewer = tables.gather_block_tables(step.idx_mapping[:1], 1)
        others = tuple(map(torch.full_like, tables.input_block_tables, [7] * groups))
        tables.gather_block_tables(step.idx_mapping, padded, others, tables._make_ptr_tensor(others))
        mapping = step.idx_mapping.clone()
        if dummy:
            mapping[-1] = -1
        out = torch.full((groups, num_tokens + 3), 7)
        tables.compute_slot_mappings(mapping, step.query_start_loc, positions, num_tokens, out=out)
        slots = tables.compute_slot_mappings(mapping, step.query_start_loc, positions, num_tokens)
        return [
            *(table.gpu for table in tables.block_tables),
            *gathered,
            *fewer,
            *others,
            slots,
            tables.slot_mappings,
            out,
        ]

    expected = run()
    with bodies():
        assert_same(expected, run())
