"""The stages of a training that run the target on vLLM, each a process of its own: preparing, and the check."""
