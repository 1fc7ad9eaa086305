"""GRIFFIN's layout, of an EAGLE-1, EAGLE-2 or HASS drafter or of a released GRIFFIN drafter in a ``.bin``."""

from vllm_specext.convert.files import Converted, Source
from vllm_specext.convert.kinds import Format
from vllm_specext.convert.target import Target, check
from vllm_specext.methods.griffin.checkpoint import configuration, read_shape, read_tensors


def write(source: Source, target: Target | None) -> Converted:
    """The drafter with GRIFFIN's tensors, in the source's types. Raises ``ConfigurationError``."""
    shape = read_shape(source.folder)
    if target is not None:
        check(target, shape.hidden_size, shape.vocab_size)
    tensors = read_tensors(source.folder) | source.draft_vocabulary(shape.vocab_size)
    dtype = str(tensors["fc.fc.weight"].dtype).removeprefix("torch.")
    return Converted(configuration(shape) | {"torch_dtype": dtype}, tensors, Format.GRIFFIN, "griffin")
