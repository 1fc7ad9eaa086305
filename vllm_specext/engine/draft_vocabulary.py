"""The target's tokens that a drafter scores with the target's output layer, chosen before weights are loaded."""

from pathlib import Path

from vllm.tokenizers import cached_tokenizer_from_config

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import weights_file
from vllm_specext.methods.draft_vocabulary import FILE, SIZE, choose, read_checkpoint, read_file
from vllm_specext.methods.end_ids import ends_of
from vllm_specext.options.trees import SharedHeadOptions
from vllm_specext.refusals import Launch


def draft_vocabulary(options: SharedHeadOptions, launch: Launch, directory: Path) -> tuple[int, ...] | None:
    """The tokens that the drafter in ``directory`` scores, ascending; ``None`` for all of the target's.

    Raises ``ConfigurationError``.
    """
    size, file, total = options.draft_vocab_size, options.draft_vocab_file, launch.model.get_vocab_size()
    if size is not None and size > total:
        raise ConfigurationError(f"{SIZE} is {size}, but the target has {total} tokens: at most {total} are allowed.")
    path = weights_file(directory)
    ids = read_checkpoint(path, total)
    if file is not None:
        if ids is not None:
            raise ConfigurationError(
                f"{FILE} is {file!r}, but tensor d2t of {path} says which tokens the drafter scores: leave the key out."
            )
        ids = read_file(Path(file).expanduser(), total)
    elif ids is None:
        if size is None:
            return None
        raise ConfigurationError(
            f"{SIZE} is {size}, but {path} has no tensor d2t and there is no draft_vocab_file, which vllm-specext "
            "vocab writes."
        )
    elif size not in (None, len(ids)):
        raise ConfigurationError(
            f"{SIZE} is {size}, but tensor d2t of {path} has {len(ids)} tokens: leave the key out."
        )
    chosen = choose(ids, special_ids(launch), size if file is not None else None)
    if options.tree_top_k > len(chosen):
        raise ConfigurationError(
            f"speculative-config key 'tree_top_k' is {options.tree_top_k}, but the drafter scores {len(chosen)} "
            f"tokens: at most {len(chosen)} are allowed."
        )
    return chosen


def special_ids(launch: Launch) -> frozenset[int]:
    """The target's tokens that are no text, which hardly a text has and every answer needs: those that end it, and what
    its tokenizer calls special or has added, unless vLLM was told to load none."""
    model = launch.model
    found = ends_of(model)
    if not model.skip_tokenizer_init:
        tokenizer = cached_tokenizer_from_config(model)
        found |= {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    return frozenset(id for id in found if 0 <= id < model.get_vocab_size())
