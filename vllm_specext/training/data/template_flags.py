"""Flags of chat templates, such as ``enable_thinking``: which a template reads.

A flag that no template reads changes nothing, and is refused for that reason.
"""

import inspect
from collections.abc import Iterable

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllm_specext.errors import ConfigurationError
from vllm_specext.speculative_config import short


class _Marks(Extension):
    """``{% generation %}``, by which templates mark what an assistant says. Nothing here runs what is in it."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def check_flags(flags: Iterable[str], source: str) -> None:
    """``ConfigurationError`` if the template ``source`` is none, or does not read one of ``flags``."""
    from transformers import PreTrainedTokenizerBase

    # Names of messages, tools and all that says how to render are no flags.
    taken = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters.keys() | {"messages"}
    read = variables(source) - taken
    for flag in flags:
        if flag not in read:
            raise ConfigurationError(
                f"the template flag {short(repr(flag))} is none that the target's chat template reads; it reads "
                f"{', '.join(sorted(read)) or 'none'}."
            )


def variables(source: str) -> set[str]:
    """What the template ``source`` reads and does not set."""
    environment = ImmutableSandboxedEnvironment(extensions=[_Marks, "jinja2.ext.loopcontrols"])
    try:
        return find_undeclared_variables(environment.parse(source))
    except TemplateSyntaxError as error:
        raise ConfigurationError(
            f"the target's chat template is no Jinja template: line {error.lineno} ({short(str(error.message))})."
        ) from None
