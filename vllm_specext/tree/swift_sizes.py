"""How deep and wide SWIFT's drafts are, as published. No torch is imported here, because options read it."""

MAX_DEPTH = 25
"""The longest chain."""

GREEDY = (10, 8, 5, 3)
"""Candidates of a level, by its confidence: at most 0.5, above it, above 0.8, above 0.95. The published code keeps so
many where tokens are the target's most likely ones."""

SAMPLED = (10, 5, 3, 1)
"""The same where tokens are sampled. The paper has this table only."""

NUM_CANDIDATES = max(GREEDY + SAMPLED)
"""The most candidates of a level."""
