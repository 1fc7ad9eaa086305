"""What vLLM's EAGLE drafters need before vLLM builds their configuration: a checkpoint that fits the target."""

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.eagle.checkpoint import DrafterShape
from vllm_specext.methods.eagle.config import drafter_shape, target_layers
from vllm_specext.methods.eagle.latent import check_latent
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.source import drafter_directory
from vllm_specext.methods.stock.checkpoint import FILES, check_checkpoint
from vllm_specext.methods.stock.config import LATENT, Drafter, positions, read_drafter
from vllm_specext.methods.stock.mask_token import check_mask_token
from vllm_specext.methods.stock.prepare import check_target, check_top_k, check_vocabulary
from vllm_specext.options.stock import PEagleTreeOptions, StockDrafterOptions
from vllm_specext.refusals import Launch


def prepare(options: StockDrafterOptions, launch: Launch) -> Prepared:
    """Check the drafter against the target. Raises ``ConfigurationError``."""
    directory = drafter_directory(options.model, options.revision, FILES)
    if options.stock_method == "eagle3":
        check_target(options.method, launch)
    drafter = read_drafter(directory, options, launch.model.trust_remote_code)
    check_latent(drafter, options.method, launch.model)
    most = check_vocabulary(drafter.place, getattr(drafter.config, "vocab_size", None), launch)
    hidden_size = launch.model.get_hidden_size()
    overrides = positions(drafter, launch.model.max_model_len)
    states = 1
    if options.stock_method == "eagle3":
        layers = target_layers(drafter, launch.model.get_total_num_hidden_layers())
        states = len(layers)
        overrides |= {
            "eagle_aux_hidden_state_layer_ids": layers,
            "num_aux_hidden_states": states,
            "target_hidden_size": hidden_size,
        }
    at_once = isinstance(options, PEagleTreeOptions)
    if at_once:
        check_mask_token(drafter.place, drafter.config, "eagle3-tree")
    if drafter.is_known:
        shape = drafter_shape(drafter, states, hidden_size, at_once)
        _check_hidden_size(drafter, shape)
        check_checkpoint(directory, shape)
        most = shape.draft_vocab_size
    check_top_k(options, most)
    is_latent = drafter.class_name in LATENT
    return Prepared(options.for_vllm(model=str(directory)), overrides, is_latent=is_latent)


def _check_hidden_size(drafter: Drafter, shape: DrafterShape) -> None:
    target = shape.target_hidden_size
    said = getattr(drafter.config, "target_hidden_size", None)
    if shape.is_eagle3 and said not in (None, target):
        raise ConfigurationError(f"{drafter.place}: target_hidden_size is {said!r} but the target's is {target}.")
    if shape.hidden_size != target and (said is None or not shape.is_eagle3):
        another = "; another one needs target_hidden_size" if shape.is_eagle3 else ""
        raise ConfigurationError(
            f"{drafter.place}: hidden_size is {shape.hidden_size} but the target's is {target}{another}."
        )
