"""What drafters with a foreign tokenizer need before vLLM builds its configuration, and what is checked once it has."""

from typing import Any

from vllm.logger import init_logger

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import check_files
from vllm_specext.methods.foreign_vocab.distributions.overlap import coverage
from vllm_specext.methods.foreign_vocab.pairing import Pairing, read_pairing
from vllm_specext.methods.foreign_vocab.small_vocabulary import why_unsuitable
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import SAMPLES
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.source import LANGUAGE_MODEL, check_config, drafter_directory
from vllm_specext.options.foreign import ForeignOptions
from vllm_specext.refusals import Launch

logger = init_logger(f"vllm.{__name__}")

NAMED = 5
"""Special tokens that the log names; some models have hundreds in reserve."""


def prepare(options: ForeignOptions, launch: Launch) -> Prepared:
    """Check the drafter's files. Raises ``ConfigurationError``."""
    directory = drafter_directory(options.model, options.revision, LANGUAGE_MODEL)
    check_files(directory, LANGUAGE_MODEL)
    check_config(directory)
    return Prepared(options.for_vllm(model=str(directory)))


def check(options: ForeignOptions, config: Any) -> None:
    """Refuse a pair of models that cannot work, and say in the log how well the others fit; ``config`` is the finished
    ``SpecExtConfig``. Raises ``ConfigurationError``."""
    target, drafter = config.target_model_config, config.draft_model_config
    if drafter.is_moe and config.target_parallel_config.data_parallel_size > 1:
        raise ConfigurationError(
            f"speculative-config key 'model' is {options.model!r}, a mixture of experts, which all ranks of "
            "--data-parallel-size would have to run in step; dense drafters are allowed."
        )
    if drafter.is_hybrid or drafter.is_attention_free:
        raise ConfigurationError(
            f"speculative-config key 'model' is {options.model!r}, whose recurrent state cannot be rolled back to the "
            "accepted text; drafters with attention alone are allowed."
        )
    pairing = read_pairing(target, drafter)
    if options.method == "slrs" and (reason := why_unsuitable(pairing.drafter.token_bytes)):
        raise ConfigurationError(f"speculative-config key 'model' is {options.model!r}: {reason}")
    if options.method == "tli" and not pairing.shared.keys() - pairing.drafter.ends:
        raise ConfigurationError(
            f"speculative-config key 'model' is {options.model!r}, which shares no token with the target, and 'tli' "
            "drafts from the shared ones; use 'slem', which drafts with any vocabulary."
        )
    report(pairing, drafter.max_model_len < target.max_model_len)


def report(pairing: Pairing, is_shorter: bool) -> None:
    sample = [token for ids in pairing.target.encode_batch(SAMPLES) for token in ids]
    logger.info_once(
        "The drafter's tokenizer shares %d tokens with the target's, %.0f%% of sample text; %.2f of its tokens for one "
        "of the target's",
        len(pairing.shared),
        100 * coverage(sample, set(pairing.shared.values())),
        pairing.draft_tokens_per_target_token,
    )
    for name, vocabulary in (("target", pairing.target), ("drafter", pairing.drafter)):
        if vocabulary.difference is not None:
            logger.warning_once(
                "The %s's tokenizer changes text (%s), so that drafts of the changed parts are lost.",
                name,
                vocabulary.difference,
            )
    if left_out := [spelling for spelling, id in pairing.target.markers.items() if id not in pairing.markers]:
        logger.info_once(
            "%d of the target's %d special tokens have no counterpart of the same role and are left out of the "
            "drafter's text: %s",
            len(left_out),
            len(pairing.target.markers),
            ", ".join(left_out[:NAMED]) + (", ..." if len(left_out) > NAMED else ""),
        )
    if pairing.target.ends and not pairing.drafter.ends:
        logger.warning_once("The drafter has no token that ends a text, so that the end of an answer is never drafted.")
    if is_shorter:
        logger.warning_once("Requests that outgrow the drafter's context are drafted nothing from then on.")
