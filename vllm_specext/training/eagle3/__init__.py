"""EAGLE-3's training, with the drafter in plain torch; vLLM's own class serves it."""
