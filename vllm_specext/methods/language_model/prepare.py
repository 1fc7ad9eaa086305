"""What a drafter with the target's tokenizer needs before vLLM builds its configuration, and what is checked after."""

import logging
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import check_files
from vllm_specext.methods.foreign_vocab.pairing import load_tokenizer
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.source import LANGUAGE_MODEL, check_config, drafter_directory
from vllm_specext.methods.stock.mask_token import MASK_TOKENS, check_mask_token
from vllm_specext.options.stock import AtOnceOptions, LanguageModelOptions
from vllm_specext.refusals import Launch

logger = logging.getLogger(f"vllm.{__name__}")  # a child of vLLM's logger, whose handlers and level it shares


def prepare(options: LanguageModelOptions, launch: Launch) -> Prepared:
    """Check the drafter's files. Raises ``ConfigurationError``."""
    directory = drafter_directory(options.model, options.revision, LANGUAGE_MODEL)
    check_files(directory, LANGUAGE_MODEL)
    check_config(directory)
    return Prepared(options.for_vllm(model=str(directory)))


def check(options: LanguageModelOptions, config: Any) -> None:
    """Refuse a drafter that cannot read the target's text; ``config`` is the finished ``SpecExtConfig``.

    Raises ``ConfigurationError``.
    """
    target, drafter = config.target_model_config, config.draft_model_config
    key = f"speculative-config key 'model' is {options.model!r}"
    if drafter.use_mla:
        raise ConfigurationError(
            f"{key}, which has latent attention (MLA); such drafters have not been run, choose one without."
        )
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
    own = _own_tokenizer(drafter).get_vocab()
    if isinstance(options, AtOnceOptions):
        mask = check_mask_token(f"{options.model}/config.json", drafter.hf_config, "draft-model-tree")
        own = {token: id for token, id in own.items() if id != mask}  # it is no text of the target's
    elif any(getattr(drafter.hf_config, name, None) is not None for name in MASK_TOKENS[1:]):
        logger.info("The drafter was trained to draft all positions in one pass, which method 'pard-tree' does.")
    _check_tokenizers(key, load_tokenizer(target).get_vocab(), own)


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
