"""A target that is not in the repository: Qwen3's architecture, with the bundled target's tokenizer, made at once.

It knows for each token two that may follow. The likelier ones make one long circle of all ordinary tokens, so that
greedy text does not repeat itself. Attention and MLPs are random, and matter little.
"""

import shutil
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from vllm_specext.measure.bundled import TARGET

VOCABULARY, WIDTH = 2048, 256
SPECIAL = 8
"""The first ids, which never follow."""
LIKELY, LESS_LIKELY = 0.1, 0.096


def make_target(folder: Path) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=[0, 3],
        pad_token_id=0,
        initializer_range=0.05,
    )
    model = Qwen3ForCausalLM(config)
    embedding, head = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    embedding.copy_(torch.nn.functional.rms_norm(torch.randn_like(embedding), (WIDTH,)))
    head.zero_()
    for factor in (LIKELY, LESS_LIKELY):
        circle = torch.randperm(VOCABULARY - SPECIAL) + SPECIAL
        # What follows a special token is what follows some ordinary one.
        after = torch.randint(SPECIAL, VOCABULARY, (VOCABULARY,))
        after[circle] = circle.roll(-1)
        head.index_add_(0, after, factor * embedding)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(TARGET / name, folder / name)
    return folder
