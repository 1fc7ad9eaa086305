"""From a checkpoint as it is to the one that it is to become: recognised, compared with its format, renamed."""

from dataclasses import dataclass

from vllm_specext.convert import dequantised, griffin, plain, speculators
from vllm_specext.convert.files import Converted, Source, open_source
from vllm_specext.convert.formats import recognise
from vllm_specext.convert.kinds import METHODS, SERVED_BY, TAKES, Format, To
from vllm_specext.convert.target import Target, read_target
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.block.checkpoint import MASK_EMBEDDING, refuse_mask_embedding
from vllm_specext.methods.source import drafter_directory
from vllm_specext.methods.stock.checkpoint import FILES, MASK_HIDDEN
from vllm_specext.methods.stock.mask_token import MASK_TOKENS


@dataclass(frozen=True)
class Conversion:
    source: Source
    format: Format
    """The source's."""
    result: Converted
    """Not written yet."""


def convert(model: str, to: To, target: str | None) -> Conversion:
    """``model`` and ``target`` are folders or hub ids. The target is needed for ``To.SPECULATORS``; for
    ``To.GRIFFIN`` and ``To.EAGLE`` the drafter's sizes are compared with it where it is given.

    Raises ``ConfigurationError``, which names the file and the tensor or key.
    """
    if to is To.SPECULATORS and target is None:
        raise ConfigurationError("--target is missing: --to speculators writes the target's name into config.json.")
    source = open_source(drafter_directory(model, None, (*FILES, MASK_EMBEDDING), "SRC"))
    found = recognise(str(source.folder), source.config, source.headers, blocks=to is To.BFLOAT16)
    if found not in TAKES[to]:
        raise ConfigurationError(
            f"{source.folder} is a checkpoint of {found}, which {SERVED_BY[found]} as it is; --to {to} takes "
            f"{' and '.join(TAKES[to])}."
        )
    made = _made(source, found, to, None if target is None else read_target(target))
    return Conversion(source, found, made)


def _made(source: Source, found: Format, to: To, target: Target | None) -> Converted:
    if to is To.BFLOAT16:
        refuse_mask_embedding(source.folder)
        at_once = MASK_HIDDEN in source.headers or any(key in source.config for key in MASK_TOKENS)
        is_p_eagle = found is Format.EAGLE3 and at_once
        return dequantised.write(source, "peagle-tree" if is_p_eagle else METHODS[found])
    if to is To.GRIFFIN:
        return griffin.write(source, target)
    if to is To.EAGLE:
        return plain.write(source, speculators.read(source), target)
    assert target is not None
    if found is Format.EAGLE3:
        return speculators.write(source, plain.read(source), target)
    return (speculators.of_griffin if found is Format.GRIFFIN else speculators.of_moa)(source, target)
