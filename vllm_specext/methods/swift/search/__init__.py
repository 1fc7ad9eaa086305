"""The search for the set of sub-layers to skip: its state machine, what scores come from, files and pictures of it.

No file here imports vLLM or the engine, and only ``agreement.py`` and ``window.py`` import torch.
"""
