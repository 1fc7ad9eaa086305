"""vllm-specext: speculative-decoding methods for vLLM that no serving engine has."""

__version__ = "0.1.0"
