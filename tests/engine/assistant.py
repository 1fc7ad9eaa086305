"""A small assistant of random weights for the Gemma 4 of ``test_architectures.py``."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.engine.conftest import of_method
from tests.engine.test_architectures import KEYS, WINDOW

KINDS = ["sliding_attention", "full_attention"]
NODES, TOP_K, LEVELS = 24, 4, 4
WIDTH, CENTROIDS, CHOSEN = 64, 64, 16


def make_assistant(folder: Path, ordered: bool = False) -> Path:
    """One that scores the tokens of the likeliest clusters alone, where they are ``ordered``."""
    text = transformers.Gemma4TextConfig(
        vocab_size=KEYS["vocab_size"],
        hidden_size=WIDTH,
        intermediate_size=128,
        num_hidden_layers=len(KINDS),
        num_kv_shared_layers=len(KINDS),
        layer_types=KINDS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        global_head_dim=128,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        max_position_embeddings=KEYS["max_position_embeddings"],
        eos_token_id=[0, 3],
        bos_token_id=0,
        pad_token_id=0,
        **WINDOW,
    )
    config = transformers.Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=KEYS["hidden_size"],
        use_ordered_embeddings=ordered,
        num_centroids=CENTROIDS,
        centroid_intermediate_top_k=CHOSEN,
    )
    torch.manual_seed(1)
    model = transformers.Gemma4AssistantForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.08)
        if ordered:
            model.masked_embedding.token_ordering.copy_(torch.randperm(KEYS["vocab_size"]))
    model.float().save_pretrained(folder)
    return folder


def assistant_tree(models: tuple[Path, Path], nodes: int = NODES, top_k: int = TOP_K, **own: Any) -> dict[str, Any]:
    """Draft trees of the second of the ``models`` for the first."""
    return of_method("mtp-tree", models[1], nodes, top_k, tree_depth=LEVELS, **own) | {"model": str(models[0])}
