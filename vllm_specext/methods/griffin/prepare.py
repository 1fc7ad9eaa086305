"""What GRIFFIN needs before vLLM builds its configuration: the checkpoint's folder, checked, and the widths in its
tensors."""

from vllm_specext.engine.draft_vocabulary import draft_vocabulary
from vllm_specext.methods.griffin.checkpoint import check_against_target, read_shape
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.source import drafter_directory
from vllm_specext.options.trees import GriffinOptions
from vllm_specext.refusals import Launch


def prepare(options: GriffinOptions, launch: Launch) -> Prepared:
    """Check the drafter against the target. Raises ``ConfigurationError``."""
    directory = drafter_directory(options.model, options.revision)
    shape = read_shape(directory)
    check_against_target(shape, launch.model.get_hidden_size(), launch.model.get_vocab_size())
    overrides = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp_size,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "max_position_embeddings": shape.max_position_embeddings,
        "qkv_bias": shape.qkv_bias,
        "tgf_size": shape.tgf_size,
        "tie_word_embeddings": False,
    }
    vocabulary = draft_vocabulary(options, launch, directory)
    return Prepared(options.for_vllm(model=str(directory)), overrides, vocabulary)
