"""How drafts are told to layers with multi-head latent attention (MLA), and what is refused there."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - on a CPU it has to come before the V2 runner
from torch import Tensor, nn
from vllm.model_executor.layers.attention import MLAAttention

from tests.kernels.gpus import H100
from vllm_specext.engine.drafting import warm_up
from vllm_specext.engine.drafting.latent_rows import latent_rows
from vllm_specext.engine.drafting.node_passes import CacheGroup
from vllm_specext.engine.verification import latent_layers, latent_steps
from vllm_specext.engine.verification.attention import rows_of
from vllm_specext.engine.verification.compaction import caches_of
from vllm_specext.engine.verification.latent_chains import LatentRows
from vllm_specext.engine.verification.latent_layers import chains_of, wrap_latent_layers
from vllm_specext.engine.verification.latent_steps import verifying
from vllm_specext.engine.verification.layout import TreeLayout
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.errors import ConfigurationError
from vllm_specext.tree.budget import TreeShape

CPU = torch.device("cpu")
SHAPE = TreeShape(nodes=8, depth=3, top_k=2)


class Layer(MLAAttention):
    """One that has what is looked at."""

    def __init__(self, backend: str = "TRITON_MLA", dtype: str = "auto", heads: int = 16) -> None:
        nn.Module.__init__(self)
        self.attn_backend: Any = SimpleNamespace(get_name=lambda: backend)
        self.kv_cache_dtype, self.layer_name = dtype, "layer"
        self.num_heads, self.head_size = heads, 576
        self.impl: Any = SimpleNamespace(scale=0.1, kv_lora_rank=512, forward_mqa=lambda *_: ("stock", None))
        self.kv_cache = torch.zeros(4, 16, 576)


def batch(counts: list[int], drafted: list[int], prefilling: list[bool], lens: list[int], **own: Any) -> Any:
    starts = np.cumsum([0, *counts])
    return SimpleNamespace(
        num_reqs=len(counts),
        num_tokens=sum(counts),
        num_reqs_after_padding=8,
        num_tokens_after_padding=64,
        num_scheduled_tokens=np.array(counts),
        num_draft_tokens_per_req=np.array(drafted),
        is_prefilling_np=np.array(prefilling),
        query_start_loc_np=starts,
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        seq_lens_cpu_upper_bound=torch.tensor(lens, dtype=torch.int32) + 2,
        **own,
    )


MIXED = batch(
    counts=[5, 3, 9, 1, 30],
    drafted=[4, 2, 0, 0, 0],
    prefilling=[False, False, True, False, True],
    lens=[25, 8, 9, 40, 30],
)
"""Two that verify drafts, a prompt of as many tokens as drafts may have, one without a draft, and another prompt."""


def bits(visible: Tensor) -> list[list[int]]:
    return [[row >> node & 1 for node in range(5)] for row in visible[:, 0].tolist()]


def trees_of(requests: int, rows: int) -> tuple[TreeStates, TreeLayout]:
    trees = TreeStates(SHAPE, 6, 64, CPU)
    layout = trees._layout(requests, rows, 5, MIXED.query_start_loc, 27)
    return trees, layout


def latent() -> LatentRows:
    return LatentRows(nodes=8, requests=6, max_model_len=64, device=CPU)


CAUSAL = torch.ones(5, 5, dtype=torch.int32).tril().tolist()


def test_all_that_decode_are_rows_for_attention_and_others_see_what_chains_do() -> None:
    trees, layout = trees_of(2, 8)
    trees._prefix_lens[:2], trees._visible[:2] = torch.tensor([19, 5], dtype=torch.int32), 1
    found = latent().lay_out(MIXED, trees=layout)
    assert found is not None
    assert (found.requests, found.rows, found.query, found.longest, found.chains) == (4, 18, 9, 42, False)
    assert found.starts.tolist() == [0, 5, 8, 17, 18]
    assert found.prefix_lens.tolist() == [19, 5, 0, 39]  # of trees as they were laid out
    assert found.visible[:2, :5].eq(1).all()
    assert bits(found.visible[2, :5]) == CAUSAL
    assert found.visible[3, 0] == 1


def test_where_all_have_drafts_nothing_is_added() -> None:
    _, layout = trees_of(2, 8)
    prompts = batch([5, 3, 9], [4, 2, 0], [False, False, True], [25, 8, 9])
    for step in (batch([5, 3], [4, 2], [False, False], [25, 8]), prompts):
        assert latent().lay_out(step, trees=layout) is layout


def test_without_a_draft_vllm_divides_the_step_unless_a_prompt_stands_first() -> None:
    assert latent().lay_out(batch([1, 1, 7], [0, 0, 0], [False, False, True], [4, 9, 7])) is None
    assert latent().lay_out(batch([9, 7], [0, 0], [True, True], [9, 7])) is None
    found = latent().lay_out(batch([9, 1, 7], [0, 0, 0], [True, False, True], [9, 30, 7]))
    assert found is not None
    assert (found.requests, found.rows, found.prefix_lens.tolist()) == (2, 10, [0, 29])
    assert bits(found.visible[0, :5]) == CAUSAL


def test_a_drafters_layers_see_chains_of_the_same_rows() -> None:
    trees, layout = trees_of(2, 8)
    metadata: Any = SimpleNamespace(decode=SimpleNamespace(block_table=torch.zeros(2, 4, dtype=torch.int32)))
    layout.attach({"layer": metadata}, [["layer"]], trees.causal)
    rows, chains = rows_of(metadata), chains_of(metadata)
    assert rows is not None
    assert chains is not None
    assert rows.visible is layout.visible
    assert bits(chains.visible[1]) == CAUSAL
    assert chains.prefix_lens is rows.prefix_lens


def test_chains_are_attached_to_latent_layers_and_to_no_others() -> None:
    trees, layout = trees_of(2, 8)
    chains = TreeLayout(**(vars(layout) | {"chains": True}))
    decode = SimpleNamespace(block_table=torch.zeros(2, 4, dtype=torch.int32))
    for causal, attached in ((trees.causal, True), (None, False)):
        metadata: Any = SimpleNamespace(decode=decode, block_table=decode.block_table)
        chains.attach({"layer": metadata}, [["layer"]], causal)
        assert (rows_of(metadata) is not None) == attached


def test_of_a_pass_over_nodes_all_rows_decode_and_see_each_other_as_they_are_told() -> None:
    _, layout = trees_of(2, 8)
    table = torch.zeros(2, 4, dtype=torch.int32)
    metadata = latent_rows(CacheGroup(["a", "b"], 16, table), layout.rows_on(table))
    assert metadata["a"] is metadata["b"]
    assert (metadata["a"].num_decodes, metadata["a"].num_prefills, metadata["a"].num_decode_tokens) == (2, 0, 8)
    assert chains_of(metadata["a"]) is rows_of(metadata["a"])


def test_layers_run_tree_attention_on_what_is_attached_and_else_their_backends_kernel() -> None:
    of_target, of_drafter = Layer(), Layer()
    wrap_latent_layers([of_target], of_target=True)
    wrap_latent_layers([of_drafter], of_target=False)
    plain: Any = SimpleNamespace()
    assert of_target.impl.forward_mqa(None, None, plain, of_target)[0] == "stock"
    trees, layout = trees_of(2, 8)
    trees._prefix_lens[:2] = torch.tensor([9, 3], dtype=torch.int32)
    cache = torch.randn(4, 16, 576)
    metadata: Any = SimpleNamespace(decode=SimpleNamespace(block_table=torch.tensor([[1], [2]], dtype=torch.int32)))
    layout.visible[:2, :, 0] = 1 << torch.arange(5, dtype=torch.int32)  # each row sees its prefix and itself
    layout.attach({"layer": metadata}, [["layer"]], trees.causal)
    query = torch.randn(8, 16, 512), torch.randn(8, 16, 64)
    found = {layer: layer.impl.forward_mqa(query, cache, metadata, layer)[0] for layer in (of_target, of_drafter)}
    whole = torch.cat(query, dim=-1)
    for layer, seen in ((of_target, [*range(9), 12]), (of_drafter, [*range(13)])):  # by row 3 of the first request
        keys = cache[1, seen]
        expected = (whole[3] @ keys.T * 0.1).softmax(-1) @ keys[:, :512]
        torch.testing.assert_close(found[layer][3], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (
            Layer(backend="FLASHMLA"),
            "the attention backend FLASHMLA of layer 'layer'; choose one of FLASH_ATTN_MLA",
        ),
        (Layer(dtype="fp8"), "latent vectors of type fp8, which layer 'layer' keeps"),
    ],
)
def test_what_tree_attention_cannot_stand_in_for_is_refused(layer: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^draft trees cannot be verified with {named}"):
        wrap_latent_layers([layer], of_target=True)
    assert not latent_layers.reads_chains_as_prompts(layer)


def test_chains_are_left_to_the_backend_that_takes_any_numbers_of_rows() -> None:
    read = latent_layers.reads_chains_as_prompts
    assert [read(Layer(backend=name)) for name in ("FLASH_ATTN_MLA", "TRITON_MLA", "CPU_MLA")] == [False, True, True]


def test_a_drafters_layer_reads_prompts_with_its_own_scale() -> None:
    seen: list[float] = []
    backend = SimpleNamespace(scale=0.5)
    metadata = SimpleNamespace(prefill=SimpleNamespace(prefill_backend=backend))
    layer = Layer()
    layer.impl.forward_mha = lambda *arguments: seen.append(arguments[4].prefill.prefill_backend.scale)
    latent_layers.read_prompts_with_own_scale(layer.impl)
    layer.impl.forward_mha(None, None, None, None, metadata, None, output=None, output_scale=None)
    assert (seen, backend.scale) == ([0.1], 0.5)


def divided(layout: TreeLayout | None, padded: bool) -> Any:
    split = latent_steps._split(lambda *args, **kwargs: (1, 2, 3, 4))
    with verifying(layout, MIXED, padded):
        return split(SimpleNamespace(num_reqs=5, num_actual_tokens=48), decode_threshold=1)


def test_the_rows_of_drafts_decode_and_all_others_do_not() -> None:
    _, layout = trees_of(2, 8)
    assert divided(layout, padded=False) == (2, 3, 8, 40)
    assert divided(None, padded=False) == (1, 2, 3, 4)  # as vLLM divides it
    with verifying(layout, MIXED, padded=True):
        split = latent_steps._split(lambda *args, **kwargs: (1, 2, 3, 4))
        assert split(SimpleNamespace(num_reqs=8, num_actual_tokens=64)) == (8, 0, 64, 0)
    assert latent_steps._split(lambda *args: (0,))(None) == (0,)  # type: ignore[arg-type, return-value]


def test_chains_are_laid_out_with_whatever_decodes_beside_them() -> None:
    chains = latent()
    layout = chains.lay_out(MIXED)
    assert layout is not None
    assert (layout.requests, layout.rows, layout.query, layout.longest, layout.chains) == (4, 18, 9, 42, True)
    assert layout.prefix_lens.tolist() == [20, 5, 0, 39]
    assert bits(layout.visible[3, :5]) == CAUSAL
    plain = batch([1, 1], [0, 0], [False, False], [4, 9])
    assert chains.lay_out(plain, for_capture=True) is None
    captured = chains.lay_out(batch([5, 5], [0, 0], [False, False], [4, 9]), for_capture=True)
    assert captured is not None
    assert (captured.requests, captured.rows, captured.longest) == (2, 10, 64)
    # What a graph has captured is where the next step writes.
    following = chains.lay_out(MIXED)
    assert following is not None
    assert captured.prefix_lens.data_ptr() == following.prefix_lens.data_ptr()


def test_latent_vectors_move_whole() -> None:
    layer = Layer()
    (view,) = caches_of([layer])
    assert view.shape == (4, 1, 16, 576)
    assert view.data_ptr() == layer.kv_cache.data_ptr()


def test_every_variant_is_compiled_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from vllm_specext.kernels.tree_attention import variant
    from vllm_specext.kernels.tree_attention.tiles import Processors

    monkeypatch.setattr(Processors, "of", lambda device: H100)
    ran: list[Any] = []
    monkeypatch.setattr(warm_up, "latent_attention", lambda impl, query, kv_cache, rows: ran.append((query, rows)))
    trees, layer = TreeStates(TreeShape(nodes=59, depth=6, top_k=10), 8, 4096, CPU), Layer()
    table = torch.zeros(8, 8, dtype=torch.int32)
    warm_up.compile_attention(trees, [[layer, layer]], [table], [59] * 5 + [4] * 4, 4096, torch.bfloat16)
    keys, values = warm_up.keys_and_values(layer)
    assert (keys.shape, values.shape) == ((4, 1, 16, 576), (4, 1, 16, 512))
    compiled = {variant(query, keys, values, rows) for query, rows in ran}
    assert len(compiled) == len(ran) >= 4
    for requests, query in ((1, 17), (4, 60), (3, 2), (8, 5)):
        rows = trees.rows_for_warm_up(requests, query, table, 3000)
        assert variant(ran[0][0], keys, values, rows) in compiled
