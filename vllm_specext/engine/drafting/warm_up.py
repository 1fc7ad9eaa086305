"""Compiling at start what Triton would otherwise compile in the first steps that need it, while requests wait.

vLLM warms up with the longest drafts and with few numbers of requests, so that most variants of tree attention do not
run then, nor what drafts chains; graphs are captured for some sizes only. Here every variant that serving can ask for
is launched once, on no rows.
"""

import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import MLAAttention
from vllm.platforms import current_platform
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import gather_draft_sampled
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import prepare_decode_inputs

from vllm_specext.engine.drafting.tree_speculator import TreeSpeculator
from vllm_specext.engine.graph_sizes import most_drafted
from vllm_specext.engine.verification.attention import pages
from vllm_specext.engine.verification.compaction import caches_of
from vllm_specext.engine.verification.latent_layers import latent_attention, latent_parts
from vllm_specext.engine.verification.prefix_check import is_right
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.engine.verification.verifying_layers import leave_prefixes_to_tree_attention, over_prefixes
from vllm_specext.kernels.calibration import calibrate
from vllm_specext.kernels.kv_compaction import compact
from vllm_specext.kernels.tree_attention import TreeRows, variant
from vllm_specext.tree.calibration import Learned

logger = init_logger(f"vllm.{__name__}")


def warm_up(runner: Any) -> None:
    """Compile what vLLM's model ``runner`` needs once its caches are laid out: nothing on a CPU or without trees."""
    steps = getattr(runner.model_state, "steps", None)
    if steps is None or runner.device.type != "cuda":
        return
    trees, groups = steps.trees, steps.layers
    tables = [runner.block_tables.input_block_tables[group] for group in range(len(groups))]
    with torch.inference_mode():
        compile_rows(runner.input_buffers, runner.req_states.prefill_len.gpu)
        compile_compaction(trees, groups)
        check_prefixes(groups, runner.max_model_len, runner.dtype)
        compile_attention(trees, groups, tables, most_drafted(runner.vllm_config), runner.max_model_len, runner.dtype)
        if getattr(runner.speculator, "calibrated", None) is not None:
            compile_calibration(runner.device)
        if isinstance(runner.speculator, TreeSpeculator):
            compile_chains(runner.speculator, runner.vllm_config.speculative_config.schedule)
    torch.cuda.synchronize()


def compile_rows(buffers: Any, prefill_lens: Tensor) -> None:
    """Look up the drafts of as many rows as 16 divides, and of another number: Triton tells the two apart, and vLLM
    warms up with one number alone."""
    for count in (16, 17):
        rows = torch.zeros(count, dtype=torch.int64, device=prefill_lens.device)
        gather_draft_sampled(buffers.input_ids, buffers.positions, rows, rows, rows.int(), prefill_lens)


def compile_calibration(device: torch.device) -> None:
    """Learn nothing, of requests that all count and of some that do not."""
    slots, of_slots = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(1, device=device)
    for counts in (None, slots.to(torch.uint8)):
        calibrate(Learned.nothing(device), slots, of_slots, of_slots, slots.int(), 0, counts)


def compile_compaction(trees: TreeStates, groups: Sequence[Sequence[Any]]) -> None:
    """Move nothing in any group of the target's layers."""
    for levels in {trees.shape.depth, trees.levels}:
        nowhere = torch.zeros(1, levels + 1, dtype=torch.int64, device=trees.device)
        for layers in filter(None, groups):
            compact(caches_of(layers), nowhere, nowhere)


def check_prefixes(groups: Sequence[Sequence[Any]], max_model_len: int, dtype: torch.dtype) -> None:
    """Leave prefixes to tree attention in those of the target's layers where another kernel is not right."""
    kinds: dict[tuple[Hashable, Any], list[Any]] = {}
    for layer in filter(over_prefixes, itertools.chain.from_iterable(groups)):
        kinds.setdefault((kind(layer), over_prefixes(layer)), []).append(layer)
    for (_, attend), layers in kinds.items():
        first, cache = layers[0], layers[0].kv_cache
        if is_right(attend, cache.shape, first.num_heads, dtype, cache.device, max_model_len):
            continue
        logger.warning(
            "FlashAttention 3 over the prefixes of draft trees gives other results than tree attention for layer %r, "
            "so that tree attention does all; please report it.",
            first.layer_name,
        )
        for layer in layers:
            leave_prefixes_to_tree_attention(layer)


def compile_attention(
    trees: TreeStates,
    groups: Sequence[Sequence[Any]],
    tables: Sequence[Tensor],
    most: Sequence[int],
    max_model_len: int,
    dtype: torch.dtype,
) -> None:
    """Attend to nothing with the first of each kind of the target's layers, given by cache ``groups`` with their block
    ``tables`` ``[requests, blocks]``. ``most``: drafted tokens of a request while at least so many verify."""
    for layers, table in zip(groups, tables, strict=True):
        for layer in {kind(layer): layer for layer in layers[::-1]}.values():
            query = torch.zeros(
                1, layer.num_heads, layer.head_size, device=trees.device, dtype=query_dtype(layer, dtype)
            )
            keys, values = keys_and_values(layer)
            compiled = set()
            for rows in shapes(trees, table, most, max_model_len):
                if (found := variant_of(layer, query, keys, values, rows)) not in compiled:
                    compiled.add(found)
                    attend(layer, query, rows, dtype)


def keys_and_values(layer: Any) -> tuple[Tensor, Tensor]:
    """Of a layer's cache, as tree attention reads them."""
    return latent_parts(layer.impl, layer.kv_cache) if isinstance(layer, MLAAttention) else pages(layer.kv_cache)


def attend(layer: Any, query: Tensor, rows: TreeRows, dtype: torch.dtype) -> None:
    """Run tree attention with a wrapped ``layer`` of a model that computes in ``dtype``."""
    if isinstance(layer, MLAAttention):
        latent_attention(layer.impl, query, layer.kv_cache, rows)
    else:
        output = torch.empty_like(query, dtype=dtype)
        layer.impl.forward(layer, query, None, None, layer.kv_cache, rows, output=output)


def variant_of(layer: Any, query: Tensor, keys: Tensor, values: Tensor, rows: TreeRows) -> Hashable:
    """Name what Triton compiles for ``rows`` in a wrapped ``layer``: equal names share a binary."""
    return variant(query, keys, values, rows) if over_prefixes(layer) is None else "nodes"  # the same for all rows


def query_dtype(layer: Any, dtype: torch.dtype) -> torch.dtype:
    """What a layer's queries have when they reach its implementation: vLLM quantises them for some float8 caches."""
    return dtype if getattr(layer, "query_quant", None) is None else current_platform.fp8_dtype()


def compile_chains(speculator: TreeSpeculator, schedule: Sequence[Sequence[int]]) -> None:
    """Prepare the second token of a chain, in a request slot that nobody has yet, where the ``schedule`` has chains."""
    levels = speculator.sizes.largest.depth
    if any(1 < nodes <= levels for _, _, nodes in schedule):
        buffers, none = speculator.input_buffers, torch.zeros(1, dtype=torch.int32, device=speculator.device)
        prepare_decode_inputs(
            speculator.draft_tokens[:1, 0],
            buffers.seq_lens[:1],
            none,
            buffers,
            speculator.sample_src_positions,
            speculator.max_model_len,
            speculator.max_num_reqs,
            advance_draft_positions=speculator.advance_draft_positions,
        )


def kind(layer: Any) -> Hashable:
    """Layers of the same kind share what is compiled."""
    cache, impl = layer.kv_cache, layer.impl
    sinks = getattr(getattr(impl, "sinks", None), "dtype", None)
    return layer.num_heads, cache.shape[1:], cache.stride(), getattr(impl, "sliding_window", None), sinks


def shapes(trees: TreeStates, table: Tensor, most: Sequence[int], max_model_len: int) -> Iterator[TreeRows]:
    """Yield steps of every variant. Numbers of requests and lengths matter by the next power of two alone."""
    for requests in {*powers(len(most) - 1), len(most) - 1}:
        for longest in {*powers(max_model_len), max_model_len}:
            for query in range(2, most[requests] + 2):
                yield trees.rows_for_warm_up(requests, query, table, longest)


def powers(most: int) -> list[int]:
    return [1 << exponent for exponent in range(most.bit_length())]
