"""How often a target's tokens stand in texts, and the file of its most frequent ones. Needs no torch."""

IDS, VOCAB_SIZE = "ids", "vocab_size"
