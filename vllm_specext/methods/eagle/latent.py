"""EAGLE drafters with multi-head latent attention (MLA): which are served, and for which targets."""

from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.eagle.checkpoint import LatentAttention
from vllm_specext.methods.stock.config import LATENT, Drafter, flag, integer

_AS_THE_TARGETS = ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_AS_MTP = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "deepseek_mtp")
"""Model types of which vLLM makes a multi-token prediction module, whatever ``architectures`` says."""
_UNKNOWN = ("attention_bias", "bias", "mlp_bias", "norm_before_fc")
"""Keys that DeepSeek's class does not read."""


def check_latent(drafter: Drafter, method: str, target: Any) -> None:
    """Refuse a ``drafter`` with latent attention that is not served, or not for this ``target``, a ``ModelConfig``.

    Its layers share the target's metadata, which vLLM makes for layers of the same sizes. Raises
    ``ConfigurationError``.
    """
    if drafter.class_name not in LATENT:
        return
    place, config = drafter.place, drafter.config
    has = f"{place}: architectures makes {drafter.class_name} of it, which has latent attention (MLA)"
    if method != "eagle3-tree" or not drafter.is_known:
        raise ConfigurationError(f"{has}; of such drafters EAGLE-3's alone are supported, by method 'eagle3-tree'.")
    if not target.use_mla:
        raise ConfigurationError(f"{has}, but the target has none; such drafters are allowed for targets that have it.")
    if (kind := drafter.raw.get("model_type")) in _AS_MTP:
        raise ConfigurationError(
            f"{place}: model_type is {kind!r}, of which vLLM makes a multi-token prediction module; 'kimi_k2' and "
            "'deepseek_v2' are allowed."
        )
    for key in _AS_THE_TARGETS:
        own, wanted = integer(place, config, key), getattr(target.hf_text_config, key, None)
        if own != wanted:
            raise ConfigurationError(
                f"{place}: {key} is {own} but the target's is {wanted}; a drafter with latent attention (MLA) has to "
                "have the target's."
            )
    nested = drafter.raw.get("eagle_config")
    for key in _UNKNOWN:
        if flag(place, config, key) or (isinstance(nested, dict) and nested.get(key)):
            raise ConfigurationError(f"{place}: {key} is True, which {drafter.class_name} does not read.")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ("default", "yarn"):
        raise ConfigurationError(
            f"{place}: rope_parameters.rope_type is {rope!r}; {drafter.class_name} has 'default' and 'yarn' alone."
        )


def latent_attention(drafter: Drafter) -> LatentAttention | None:
    """Its sizes, where vLLM's class has it."""
    if drafter.class_name not in LATENT:
        return None
    place, config = drafter.place, drafter.config
    # Without a rank for queries vLLM's class cannot load what makes latent vectors.
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return LatentAttention(**{key: integer(place, config, key) for key in names})
