"""Property tests without a deadline for each example: a busy machine is not a failure."""

from hypothesis import settings

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
