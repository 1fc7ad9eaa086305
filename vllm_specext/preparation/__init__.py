"""Training data from a target that vLLM runs: its answers and its hidden states, in one pass."""
