"""vllm-specext: speculative decoding with GRIFFIN, MoA, SWIFT, SLEM, TLI and SLRS, and with draft trees, for vLLM."""

__version__ = "0.1.0"
