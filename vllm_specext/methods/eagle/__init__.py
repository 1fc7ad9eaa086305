"""EAGLE-3 (arXiv 2503.01840), EAGLE-2 and EAGLE-1: released checkpoints in vLLM's own classes, drafting trees."""
