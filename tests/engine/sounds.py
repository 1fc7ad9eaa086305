"""A target that hears, made of the bundled one, and sounds for its prompts.

It is a Qwen2-Audio: an encoder and a projector of random weights, and the bundled target for its language model. What
it says of a sound means nothing, but depends on the sound.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.engine.workload import TARGET

RATE, SECONDS = 16000, 30
COLUMNS = 4
SOUND, SOUND_TOKEN = "<|user|>", 1
"""What stands for a sound in a prompt: a token that no prompt of the tests has otherwise."""


def hearing(folder: Path, axes: bool = False) -> Path:
    """Write the target to ``folder``, with rotary positions on three ``axes`` if wanted."""
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2AudioConfig,
        Qwen2AudioEncoderConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        Qwen2Config,
        WhisperFeatureExtractor,
    )

    text = json.loads((TARGET / "config.json").read_text())
    keys = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"]
    keys += ["num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_parameters"]
    keys += ["eos_token_id", "pad_token_id"]
    if axes:
        text["rope_parameters"] |= {"mrope_section": [8, 12, 12]}
    language = Qwen2Config(**{key: text[key] for key in keys}, tie_word_embeddings=False)
    encoder = Qwen2AudioEncoderConfig(
        num_mel_bins=16,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=64,
        d_model=32,
        max_source_positions=50 * SECONDS,
    )
    torch.manual_seed(0)
    model = Qwen2AudioForConditionalGeneration(
        Qwen2AudioConfig(audio_config=encoder, text_config=language, audio_token_id=SOUND_TOKEN)
    )
    own = load_file(TARGET / "model.safetensors")
    own["lm_head.weight"] = own["model.embed_tokens.weight"].clone()
    tensors = {}
    for name, tensor in model.state_dict().items():
        if "language_model" in name or "lm_head" in name:
            inner = name.replace("model.language_model", "model")
            # Only Qwen's biases are not the bundled target's.
            assert inner in own or inner.endswith("_proj.bias"), inner
            tensors[f"language_model.{inner}"] = own.pop(inner, torch.zeros(len(tensor)).half())
        else:  # features as large as embeddings of tokens
            tensors[name.removeprefix("model.")] = (tensor * (20 if "projector" in name else 1)).half()
    assert not own
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = ["Qwen2AudioForConditionalGeneration"]
    model.config.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TARGET)
    ears = WhisperFeatureExtractor(feature_size=16, sampling_rate=RATE, chunk_length=SECONDS)
    Qwen2AudioProcessor(ears, tokenizer, audio_token=SOUND).save_pretrained(folder)
    shutil.copy(TARGET / "generation_config.json", folder)
    return folder


def sound(seed: int) -> Any:
    """Noise of half a second and more."""
    import numpy as np

    noise = np.random.default_rng(seed)
    return noise.normal(size=RATE // 2 + 1000 * (seed % 7)).astype(np.float32), RATE


def prompt(ids: list[int], seeds: list[int]) -> dict[str, Any]:
    """The prompt ``ids`` with a sound of each of the ``seeds``: before it, and after every second of its tokens."""
    made = list(ids)
    for count in range(len(seeds)):
        made.insert(min(3 * count, len(made)), SOUND_TOKEN)
    return {"prompt_token_ids": made, "multi_modal_data": {"audio": [sound(seed) for seed in seeds]}}


def give_states_of_layers() -> None:
    """No fault: vLLM's class of Qwen2-Audio has EAGLE-3's interface, as its classes that see have. What takes in hidden
    states is the language model's."""
    from vllm.model_executor.models.interfaces import SupportsEagle3
    from vllm.model_executor.models.qwen2_audio import Qwen2AudioForConditionalGeneration as Hearing

    Hearing.__bases__ = (*Hearing.__bases__, SupportsEagle3)


def place_on_three_axes() -> None:
    """No fault: a sound's tokens lie on a grid of four columns, all at one time, as a picture's do in Qwen2-VL; the
    text after it begins after its longer side. All that EAGLE-3 needs is there, too."""
    from vllm.model_executor.models.interfaces import SupportsMRoPE
    from vllm.model_executor.models.qwen2_audio import Qwen2AudioForConditionalGeneration as Hearing

    give_states_of_layers()
    Hearing.__bases__ = (*Hearing.__bases__, SupportsMRoPE)
    Hearing.get_mrope_input_positions = staticmethod(_positions)


def _positions(tokens: list[int], features: list[Any]) -> tuple[torch.Tensor, int]:
    """``[3, tokens]``, and what is to be added to the place of a token after them."""
    placed, next_one, done = [], 0, 0
    for feature in sorted(features, key=lambda feature: feature.mm_position.offset):
        begin, count = feature.mm_position.offset, feature.mm_position.length
        text, cells = torch.arange(begin - done), torch.arange(count)
        placed.append(next_one + text.expand(3, -1))
        next_one += len(text)
        placed.append(next_one + torch.stack((cells * 0, cells // COLUMNS, cells % COLUMNS)))
        next_one += max(COLUMNS, -(-count // COLUMNS))
        done = begin + count
    placed.append(next_one + torch.arange(len(tokens) - done).expand(3, -1))
    positions = torch.cat(placed, dim=1)
    return positions, next_one - done
