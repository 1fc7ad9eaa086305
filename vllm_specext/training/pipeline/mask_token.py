"""The token that stands for those that a block drafter does not know yet."""

from transformers import AutoTokenizer

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.pipeline.target import TargetModel
from vllm_specext.training.recipes.block import DFlashRecipe


def mask_token(target: TargetModel, recipe: DFlashRecipe) -> int:
    """The recipe's, or a token that texts do not have: the first that only the embedding knows, the padding, or one
    that the tokenizer has in reserve; where the padding ends answers too, it comes last.

    Raises ``ConfigurationError`` where there is none.
    """
    asked = recipe.mask_token_id
    if asked is not None:
        if asked >= target.vocab_size:
            raise ConfigurationError(
                f"the recipe's key 'mask_token_id' is {asked}, but the target has {target.vocab_size} tokens; a lower "
                "number is needed."
            )
        return asked
    tokenizer = AutoTokenizer.from_pretrained(target.folder)
    known = tokenizer.get_vocab()
    if (above := max(known.values()) + 1) < target.vocab_size:
        return above
    padding, ends = tokenizer.pad_token_id, tokenizer.eos_token_id
    paddings = [padding] if padding is not None and padding < target.vocab_size else []
    added = tokenizer.added_tokens_decoder.items()
    reserved = sorted(number for number, token in added if "reserved" in str(token) and number < target.vocab_size)
    found = [*(each for each in paddings if each != ends), *reserved, *paddings]
    if not found:
        raise ConfigurationError(
            "the target's tokenizer has a text for every token, and no padding; the recipe's key 'mask_token_id' has "
            "to name a token that texts do not have."
        )
    return int(found[0])
