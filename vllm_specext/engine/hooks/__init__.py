"""What is changed in vLLM, by the part of it that is changed."""
