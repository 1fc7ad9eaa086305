"""A small assistant of random weights for the Gemma 4 of ``test_architectures.py``, and such a target that sees."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.engine.conftest import of_method
from tests.engine.test_architectures import ARCHITECTURES, KEYS, WINDOW
from tests.engine.workload import copy_tokenizer

KINDS = ["sliding_attention", "full_attention"]
NODES, TOP_K, LEVELS = 24, 4, 4
EYES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
PLACEHOLDERS = {
    "boi_token_id": 2042,
    "eoi_token_id": 2043,
    "audio_token_id": 2044,
    "video_token_id": 2045,
    "image_token_id": 2046,
}
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
    if ordered:
        model.masked_embedding.token_ordering.copy_(torch.randperm(KEYS["vocab_size"]))
    return _save(model, folder)


def make_target_that_sees(folder: Path) -> Path:
    """As Gemma 4 is released; its eyes stay shut here."""
    text = transformers.Gemma4TextConfig(**KEYS | ARCHITECTURES["Gemma4"][1])
    config = transformers.Gemma4Config(text_config=text.to_dict(), vision_config=EYES, **PLACEHOLDERS)
    torch.manual_seed(0)
    copy_tokenizer(folder)
    return _save(transformers.Gemma4ForConditionalGeneration(config), folder)


def _save(model: Any, folder: Path) -> Path:
    """With matrices of random numbers."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.08)
    model.float().save_pretrained(folder)
    return folder


def assistant_tree(models: tuple[Path, Path], nodes: int = NODES, top_k: int = TOP_K, **own: Any) -> dict[str, Any]:
    """Draft trees of the second of the ``models`` for the first."""
    return of_method("mtp-tree", models[1], nodes, top_k, tree_depth=LEVELS, **own) | {"model": str(models[0])}
