"""What a drafter with the target's tokenizer needs before vLLM builds its configuration, and what is checked after."""

from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import check_files
from vllm_specext.methods.foreign_vocab.pairing import load_tokenizer
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.source import LANGUAGE_MODEL, check_config, drafter_directory
from vllm_specext.methods.stock.prepare import check as check_stock
from vllm_specext.methods.stock.prepare import fields_of
from vllm_specext.options.stock import DraftModelTreeOptions
from vllm_specext.refusals import Launch


def prepare(options: DraftModelTreeOptions, launch: Launch) -> Prepared:
    """Check the drafter's files. Raises ``ConfigurationError``."""
    directory = drafter_directory(options.model, options.revision, LANGUAGE_MODEL)
    check_files(directory, LANGUAGE_MODEL)
    check_config(directory)
    return Prepared({**fields_of(options), "model": str(directory)})


def check(options: DraftModelTreeOptions, config: Any) -> None:
    """Refuse a drafter that cannot read the target's text; ``config`` is the finished ``SpecExtConfig``.

    Raises ``ConfigurationError``.
    """
    check_stock(options, config)
    target, drafter = config.target_model_config, config.draft_model_config
    key = f"speculative-config key 'model' is {options.model!r}"
    if drafter.is_hybrid or drafter.is_attention_free:
        raise ConfigurationError(
            f"{key}, whose recurrent state cannot be rolled back to the accepted text; drafters with attention alone "
            "are allowed."
        )
    if drafter.uses_mrope:
        raise ConfigurationError(f"{key}, which has multi-dimensional rotary positions (M-RoPE); allowed is one axis.")
    if drafter.max_model_len < target.max_model_len:
        raise ConfigurationError(
            f"{key}, which reads {drafter.max_model_len} tokens, but --max-model-len is {target.max_model_len}: at "
            f"most {drafter.max_model_len} are allowed; methods 'slem' and 'tli' draft up to the drafter's end."
        )
    _check_tokenizers(key, load_tokenizer(target).get_vocab(), _own_tokenizer(drafter).get_vocab())


def _own_tokenizer(drafter: Any) -> Any:
    """vLLM configures a drafter with the target's tokenizer."""
    from copy import copy

    own = copy(drafter)
    own.tokenizer = drafter.model
    return load_tokenizer(own)


def _check_tokenizers(key: str, target: dict[str, int], drafter: dict[str, int]) -> None:
    """Models of a family have vocabularies of several sizes, where one is padded; a token that both have has to have
    one id, and one that the drafter lacks is never drafted."""
    for token, own in sorted(drafter.items(), key=lambda entry: entry[1]):
        if (id := target.get(token)) != own:
            theirs = "the target has none such" if id is None else f"the target's has id {id}"
            raise ConfigurationError(
                f"{key}, whose token {token!r} has id {own}, but {theirs}: the two tokenizers have to be the same; "
                "methods 'slem' and 'tli' draft with another one."
            )
