"""Drafters that vLLM has classes for: their configuration and their checkpoints, before vLLM loads them."""
