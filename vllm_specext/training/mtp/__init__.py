"""Further training of a target's own multi-token prediction module, in plain torch; vLLM's classes serve it."""
