"""What the demonstration, ``vllm-specext bench`` and ``benchmarks`` measure with: the bundled models and prompts,
servers and engines, and turns beside plain decoding. Nothing here imports any of the three."""
