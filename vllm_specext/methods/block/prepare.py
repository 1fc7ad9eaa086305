"""What vLLM's block drafters need before vLLM builds their configuration: a checkpoint that fits the target, and trees
that are no deeper than its blocks."""

from vllm_specext.errors import ConfigurationError
from vllm_specext.kernels.tree_expansion import LARGEST_POOL
from vllm_specext.methods.block.checkpoint import MASK_EMBEDDING, BlockShape, refuse_mask_embedding
from vllm_specext.methods.block.config import Block, block_of, drafter_shape
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.source import drafter_directory
from vllm_specext.methods.stock.checkpoint import FILES, check_checkpoint
from vllm_specext.methods.stock.config import Drafter, positions, read_drafter
from vllm_specext.methods.stock.prepare import check_target, check_top_k, check_vocabulary
from vllm_specext.options.stock import BlockOptions
from vllm_specext.refusals import Launch
from vllm_specext.tree.budget import pool_size


def prepare(options: BlockOptions, launch: Launch) -> Prepared:
    """Check the drafter against the target. Raises ``ConfigurationError``."""
    directory = drafter_directory(options.model, options.revision, (*FILES, MASK_EMBEDDING))
    check_target(options.method, launch)
    drafter = read_drafter(directory, options, launch.model.trust_remote_code)
    check_vocabulary(drafter.place, getattr(drafter.config, "vocab_size", None), launch)
    hidden_size = launch.model.get_hidden_size()
    block = block_of(drafter, launch.model.get_total_num_hidden_layers())
    shape = drafter_shape(drafter, len(block.target_layers), hidden_size)
    _check_hidden_size(drafter, shape)
    refuse_mask_embedding(directory)
    check_checkpoint(directory, shape)
    options = _with_children(drafter, shape, _within(drafter, block, options))
    check_top_k(options, shape.draft_vocab_size)
    overrides = positions(drafter, launch.model.max_model_len) | {
        # vLLM's runner V2 asks here first, and numbers layers by their input.
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in block.target_layers],
        "target_hidden_size": hidden_size,
        "sample_from_anchor": block.from_anchor,
        # A part of what is compiled.
        "block_rows": options.levels + (not block.from_anchor),
        # What vLLM's class takes its layers for decides about their backend alone, because a block's passes bring
        # their own attention: one that knows rows that see later ones would be asked for in vain.
        "is_causal": True,
        "causal_layers": [sight.is_causal for sight in block.sights],
        **block.scales.overrides(),
    }
    return Prepared(options.for_vllm(model=str(directory)), overrides, options=options)


def _with_children(drafter: Drafter, shape: BlockShape, options: BlockOptions) -> BlockOptions:
    """The options with no more children of a node than DFlash2's drafters score and, where the user names no number,
    than trees are grown of in one launch for a level."""
    most = shape.second.candidates if shape.second is not None else shape.draft_vocab_size
    if shape.second is not None and options.tree_top_k > most and "tree_top_k" in options.model_fields_set:
        raise ConfigurationError(
            f"speculative-config key 'tree_top_k' is {options.tree_top_k}, but {drafter.place} has selector_top_k "
            f"{most}: so many tokens of a position are scored."
        )
    if "tree_top_k" in options.model_fields_set or (shape.second is None and shape.markov_rank is None):
        return options
    children = min(options.tree_top_k, most)
    while children > 1 and pool_size(options.tree_depth, children) > LARGEST_POOL:
        children -= 1
    return options.model_copy(update={"tree_top_k": children})


def _within(drafter: Drafter, block: Block, options: BlockOptions) -> BlockOptions:
    """The options with trees as deep as the blocks, where the user names no depth."""
    depth = block.levels
    if "tree_depth" not in options.model_fields_set:
        options = options.model_copy(update={"tree_depth": depth})
    asked = options.levels
    if asked > depth:
        key = "tree_depth" if options.tree is not None else "num_speculative_tokens"
        raise ConfigurationError(
            f"speculative-config key {key!r} is {asked}, but {drafter.place} has block_size {block.rows}: at most "
            f"{depth} tokens are drafted one after another."
        )
    return options


def _check_hidden_size(drafter: Drafter, shape: BlockShape) -> None:
    said = getattr(drafter.config, "target_hidden_size", None)
    if said not in (None, shape.target_hidden_size):
        raise ConfigurationError(
            f"{drafter.place}: target_hidden_size is {said!r} but the target's is {shape.target_hidden_size}."
        )
    if shape.hidden_size != shape.target_hidden_size and said is None:
        raise ConfigurationError(
            f"{drafter.place}: hidden_size is {shape.hidden_size} but the target's is {shape.target_hidden_size}; "
            "another one needs target_hidden_size."
        )
