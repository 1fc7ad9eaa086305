"""What a drafter's layers with multi-head latent attention (MLA) see of a pass over tree nodes."""

from collections.abc import Collection
from typing import Any

from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.layers.attention.mla_attention import MLACommonDecodeMetadata, MLACommonMetadata

from vllm_specext.engine.drafting.node_passes import CacheGroup, See, all_alike
from vllm_specext.engine.verification.attention import attach
from vllm_specext.kernels.tree_attention import TreeRows


def seen_by(vllm_config: VllmConfig, names: Collection[str]) -> See:
    """What a drafter's layers ``names`` see of a pass. The layers are asked for their kind, because vLLM's ``use_mla``
    does not know all drafters with latent attention (vllm#45764)."""
    return latent_rows if get_layers_from_vllm_config(vllm_config, MLAAttention, list(names)) else all_alike


def latent_rows(group: CacheGroup, rows: TreeRows) -> dict[str, Any]:
    """Metadata of a step in which all rows decode, for every layer of the ``group``. Tree attention reads what is
    attached to it, and vLLM's layer how many rows there are."""
    requests = len(rows.prefix_lens)
    metadata: Any = MLACommonMetadata(
        num_reqs=requests,
        max_query_len=rows.max_query_len,
        max_seq_len=rows.max_seq_len,
        num_actual_tokens=rows.num_rows,
        query_start_loc=rows.query_start_loc,
        slot_mapping=rows.query_start_loc,  # layers are given slots apart from this
        num_decodes=requests,
        num_decode_tokens=rows.num_rows,
        num_prefills=0,
        decode=MLACommonDecodeMetadata(rows.block_table, rows.prefix_lens, None),
    )
    attach(metadata, rows)
    return dict.fromkeys(group.layers, metadata)
