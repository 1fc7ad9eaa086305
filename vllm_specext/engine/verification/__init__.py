"""A step of the target over draft trees: layout, attention, the walk along what the target draws, KV compaction."""
