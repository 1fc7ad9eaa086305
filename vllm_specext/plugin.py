"""The entry point of ``vllm.general_plugins``. vLLM calls it once in every process; it does nothing unless one of our
methods is asked for.

Imports stay light here: if importing an entry point fails, vLLM skips the plug-in with nothing but a log line.
"""


def register() -> None:
    """Hook our methods into vLLM. Calling it again changes nothing."""
    from vllm_specext.engine.hooks.patches import install

    install()
