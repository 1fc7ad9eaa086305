"""No drafts: what the target leaves at each position is kept and written to shards, to train drafters with."""
