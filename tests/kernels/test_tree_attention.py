"""Tree attention against a loop over rows and heads in float64, on caches full of NaN where nothing was written.

Every test here runs in torch and in C++, with the Triton kernel on a GPU, and with it under Triton's interpreter
(``cases/case_tree_attention.py``).
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from bodies import BODIES, choose
from cache_layouts import Layout, far_apart, halves, token_major, transposed_keys
from torch import Tensor

from vllm_specext.kernels.tree_attention import TreeRows, tree_attention
from vllm_specext.tree.topology import pack

SCALE = 0.2
FP8 = torch.float8_e4m3fn


@dataclass
class Case:
    query: Tensor
    keys: Tensor
    values: Tensor
    """``[pages, Hkv, page size, D]``."""
    rows: TreeRows
    row_lens: list[int]
    prefix_lens: list[int]
    seen: list[list[list[int]]]
    """Of each request and row: the nodes it sees."""
    scales: dict[str, Tensor] = field(default_factory=dict)
    """By argument, what float8 numbers are multiplied by."""
    implementation: ClassVar[Any] = staticmethod(tree_attention)
    device: ClassVar[str] = "cpu"

    def attend(self, **changes: Any) -> Tensor:
        out = torch.full_like(self.like_output(), 7.0, dtype=torch.float32 if self.query.dtype == FP8 else None)
        arguments: dict[str, Any] = {"scale": SCALE} | self.scales | changes
        self.implementation(self.query, self.keys, self.values, self.rows, out, **arguments)
        return out.cpu()

    def like_output(self) -> Tensor:
        return self.query[..., : self.values.shape[3]].contiguous()

    def expected(self, soft_cap: float = 0.0, sliding_window: int = 0, sinks: Tensor | None = None) -> Tensor:
        """One row and one head at a time; rows after ``num_rows`` keep what they held."""
        out = torch.full(self.like_output().shape, 7.0, dtype=torch.float64)
        heads, kv_heads, page_size = self.query.shape[1], *self.keys.shape[1:3]
        starts, table = self.rows.query_start_loc.tolist(), self.rows.block_table.tolist()
        queries, keys, values = (x.cpu().double() for x in (self.query, self.keys, self.values))
        factors = {name: factor.cpu().double().expand(kv_heads) for name, factor in self.scales.items()}
        keys, values = (
            x * factors.get(name, torch.ones(1, dtype=torch.float64))[:, None, None]
            for name, x in (("k_scale", keys), ("v_scale", values))
        )
        if "q_scale" in factors:
            queries = queries * factors["q_scale"].repeat_interleave(heads // kv_heads)[:, None]
        for request, count in enumerate(self.row_lens):
            for row in range(count):
                seen, prefix = self.seen[request][row], self.prefix_lens[request]
                position = prefix + len(seen) - 1
                first = max(0, position + 1 - sliding_window) if sliding_window else 0
                slots = [*range(first, prefix), *(prefix + node for node in seen)]
                pages = [table[request][slot // page_size] for slot in slots]
                places = [slot % page_size for slot in slots]
                for head in range(heads):
                    shared = head * kv_heads // heads
                    query = queries[starts[request] + row, head]
                    scores = keys[pages, shared, places] @ query * SCALE
                    if soft_cap:
                        scores = soft_cap * torch.tanh(scores / soft_cap)
                    if sinks is not None:
                        scores = torch.cat((scores, sinks[head].cpu().double()[None]))
                    weights = scores.softmax(0)[: len(slots)]
                    out[starts[request] + row, head] = weights @ values[pages, shared, places]
        return out


@pytest.fixture(autouse=True, params=BODIES)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(request.param, monkeypatch)
    if request.param == "GPU":
        monkeypatch.setattr(Case, "device", "cuda")


def make(
    row_lens: list[int],
    prefix_lens: list[int],
    *,
    drafted: int = 0,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 64,
    page_size: int = 16,
    dtype: torch.dtype = torch.float32,
    layout: Layout = transposed_keys,
) -> Case:
    """Random trees; ``drafted`` nodes that are no query rows lie before those that are. Only the slots of prefixes and
    nodes are written; the pages are scattered and the block table is wild after the last page of a request."""
    random = torch.Generator().manual_seed(sum(row_lens) + head_size + page_size)
    widest, requests = max(row_lens), len(row_lens)
    nodes = drafted + widest
    lens = [prefix + drafted + rows for prefix, rows in zip(prefix_lens, row_lens, strict=True)]
    needed = [-(-length // page_size) for length in lens]
    count = sum(needed) + 2
    shuffled = iter(torch.randperm(count, generator=random).tolist())
    table = torch.full((requests, max(needed) + 1), 1 << 30, dtype=torch.int32)
    device = Case.device
    keys, values = layout(torch.empty(count, kv_heads, page_size, 2 * head_size, dtype=dtype, device=device))
    keys[:] = values[:] = torch.nan
    for request, pages in enumerate(needed):
        for page in range(pages):
            table[request, page] = mine = next(shuffled)
            written = min(page_size, lens[request] - page * page_size)
            for cache in (keys, values):
                cache[mine, :, :written] = torch.randn(kv_heads, written, cache.shape[3], generator=random).to(cache)
    # Rows after a request's own and bits after its last node are left over from another step.
    flags = torch.rand(requests, widest, nodes, generator=random) < 0.5
    seen: list[list[list[int]]] = []
    for request, own in enumerate(row_lens):
        ancestors: list[list[int]] = []
        for node in range(drafted + own):
            parent = int(torch.randint(-1, node, (), generator=random)) if node else -1
            ancestors.append([*(ancestors[parent] if parent >= 0 else []), node])
        seen.append(ancestors[drafted:])
        for row, visible in enumerate(seen[-1]):
            flags[request, row] = False
            flags[request, row, visible] = True
    starts = torch.tensor([0, *row_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    rows = TreeRows(
        block_table=table.to(device),
        query_start_loc=starts.to(device),
        prefix_lens=torch.tensor(prefix_lens, dtype=torch.int32, device=device),
        visible=pack(flags.to(device)),
        num_rows=sum(row_lens),
        max_query_len=widest,
        num_nodes=nodes,
        max_seq_len=max(lens) + 3,
    )
    query = torch.randn(sum(row_lens) + 3, heads, head_size, generator=random).to(keys)
    return Case(query, keys, values, rows, row_lens, prefix_lens, seen)


MIXED: dict[str, Any] = {"row_lens": [9, 1, 14, 6], "prefix_lens": [40, 3, 0, 77]}


def close(case: Case, tolerance: float = 1e-5, **changes: Any) -> None:
    torch.testing.assert_close(case.attend(**changes).double(), case.expected(**changes), rtol=0, atol=tolerance)


@pytest.mark.parametrize("page_size", [16, 32])
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256, 512])
def test_rows_see_their_prefix_and_their_ancestors(head_size: int, page_size: int) -> None:
    """Scores are sums of as many products as a head has numbers."""
    close(make(**MIXED, head_size=head_size, page_size=page_size), tolerance=max(1e-5, head_size * 5e-8))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (8, 2), (6, 3)])
def test_heads_share_the_keys_of_their_group(heads: int, kv_heads: int) -> None:
    close(make(**MIXED, heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize("layout", [halves, transposed_keys, token_major, far_apart])
def test_caches_may_have_any_strides(layout: Layout) -> None:
    close(make(**MIXED, layout=layout))


@pytest.mark.parametrize("nodes", [32, 33, 64, 128])
def test_bits_of_several_words(nodes: int) -> None:
    close(make([nodes, nodes - 5], [11, 50]))


@pytest.mark.parametrize("drafted", [0, 6, 40])
def test_rows_of_a_drafted_level_are_the_last_nodes(drafted: int) -> None:
    close(make([10, 10, 10], [20, 5, 61], drafted=drafted))


@pytest.mark.parametrize("changes", [{"soft_cap": 1.5}, {"sliding_window": 15}, {"soft_cap": 2.0, "sliding_window": 9}])
def test_soft_cap_and_sliding_window(changes: dict[str, Any]) -> None:
    case = make(**MIXED)
    close(case, **changes)
    assert (case.expected(**changes) - case.expected()).abs().max() > 1e-2


@pytest.mark.parametrize("changes", [{}, {"soft_cap": 1.5}])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_but_does_not_drift(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    close(make(**MIXED, dtype=dtype), tolerance=2e-2 if dtype == torch.bfloat16 else 3e-3, **changes)


PER_TENSOR = {"k_scale": torch.tensor(0.6), "v_scale": torch.tensor([0.3])}
PER_HEAD = {"k_scale": torch.tensor([0.6, 1.7]), "v_scale": torch.tensor([0.3, 0.5])}


def in_float8(scales: dict[str, Tensor], query: torch.dtype = FP8, **options: Any) -> Case:
    case = make(**MIXED, dtype=FP8, **options)
    case.query = case.query.to(query)
    if query == FP8:
        scales = scales | {"q_scale": scales["k_scale"] + 0.2}
    case.scales = {name: factor.to(Case.device) for name, factor in scales.items()}
    return case


@pytest.mark.parametrize(
    ("scales", "query", "changes"),
    [
        (PER_TENSOR, FP8, {}),
        (PER_HEAD, FP8, {"soft_cap": 1.5, "sliding_window": 9}),
        (PER_HEAD, torch.float16, {}),
        (PER_TENSOR, torch.float32, {"soft_cap": 1.5}),
    ],
)
def test_float8_caches_are_multiplied_by_their_scales(
    scales: dict[str, Tensor], query: torch.dtype, changes: dict[str, Any]
) -> None:
    """With queries that are float8, too, and those that are not. The kernel's weights are then float16."""
    case = in_float8(scales, query, layout=halves)
    close(case, tolerance=1e-5 if query == torch.float32 else 2e-3, **changes)


def test_float8_caches_of_other_layouts_and_head_sizes() -> None:
    close(in_float8(PER_TENSOR, head_size=80, layout=token_major), tolerance=2e-3)


def test_a_wrong_scale_shows() -> None:
    case = in_float8(PER_HEAD)
    right, expected = dict(case.scales), case.expected()
    swapped = {"k_scale": right["v_scale"], "v_scale": right["k_scale"]}
    other_heads = ({name: right[name].flip(0)} for name in right)
    for wrong in (swapped, *other_heads):
        case.scales = right | wrong
        differs = (case.attend().double() - expected)[:30].abs().amax(dim=2) > 1e-2
        assert differs.float().mean() > 0.8, wrong  # rows that see only themselves have one weight, 1


def test_pages_before_a_sliding_window_may_be_gone() -> None:
    case = make([9, 5], [70, 90])
    expected = case.expected(sliding_window=20)
    case.keys[case.rows.block_table[:, 0]] = case.values[case.rows.block_table[:, 0]] = torch.nan
    torch.testing.assert_close(case.attend(sliding_window=20).double(), expected, rtol=0, atol=1e-5)


def test_slots_that_only_rows_above_a_drafted_level_see_may_be_gone() -> None:
    case = make([5], [40], drafted=20)
    oldest = 40 + min(map(len, case.seen[0])) - 12
    assert oldest > 40 + 1 - 12
    for slot in range(oldest):
        page = int(case.rows.block_table[0, slot // 16])
        case.keys[page, :, slot % 16] = case.values[page, :, slot % 16] = torch.nan
    close(case, sliding_window=12)


def test_slots_after_the_bound_are_not_read() -> None:
    """Nodes after the last position that the model can have are drafted, but have no slots."""
    case = make([6, 6], [30, 9])
    case.rows = replace(case.rows, max_seq_len=33)
    case.seen[0] = [[node for node in seen if node < 3] for seen in case.seen[0]]
    case.keys[case.rows.block_table[0, 2].long(), :, 1:] = torch.nan
    close(case)


def test_layers_of_one_step_share_rows_and_may_differ() -> None:
    case, wide = make(**MIXED), make(**MIXED, heads=8)
    assert case.seen == wide.seen
    wide.rows = case.rows
    for _ in range(2):
        close(case)
        close(case, sliding_window=15)
        close(wide, sliding_window=15)


@pytest.mark.parametrize("bit", [0, 35])
def test_a_wrong_bit_shows(bit: int) -> None:
    case = make([40, 12], [30, 8])
    case.rows.visible[0, 37, bit // 32] ^= 1 << bit % 32
    wrong = (case.attend().double() - case.expected()).abs().amax(dim=(1, 2)) > 1e-3
    assert wrong.nonzero().flatten().tolist() == [37]


def test_a_wrong_prefix_length_shows() -> None:
    case = make([9, 12], [30, 8])
    case.rows.prefix_lens[1] -= 1
    wrong = (case.attend().double() - case.expected()).abs().amax(dim=(1, 2)) > 1e-3
    assert not wrong[:9].any()
    assert wrong[9:21].all()


def test_a_nan_that_a_row_sees_is_not_hidden() -> None:
    case = make([9, 12], [30, 8])
    case.values[case.rows.block_table[1, 0].long(), 0, 3] = torch.nan
    spoilt = case.attend().isnan().any(dim=2)
    assert spoilt[9:21, :2].all()
    assert spoilt.sum() == 12 * 2
