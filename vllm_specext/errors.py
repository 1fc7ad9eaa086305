"""The only exception whose text is meant for the user."""


class ConfigurationError(ValueError):
    """What the user asked for cannot be done. The message is one sentence that names the bad key, file or tensor."""
