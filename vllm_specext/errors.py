"""The one exception whose text is meant for the user."""


class ConfigurationError(ValueError):
    """What was asked for cannot be done; the message is one sentence that names the key, file or tensor at fault."""
