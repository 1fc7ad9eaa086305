"""A Triton backend that compiles nothing: with it vLLM's CPU build has Triton and its interpreter does the work."""
