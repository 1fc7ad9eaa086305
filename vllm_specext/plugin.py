"""Entry point of ``vllm.general_plugins``: called once in every vLLM process, and inert unless one of our methods is
asked for.

Imports stay light here: an error while importing an entry point makes vLLM skip the plug-in with nothing but a log
line.
"""


def register() -> None:
    """Hook our methods into vLLM. Calling it again changes nothing."""
    from vllm_specext.engine.patches import install

    install()
