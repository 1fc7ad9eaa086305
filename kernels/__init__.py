"""Triton kernels, one folder each: the kernel, ``naive.py`` beside it, and the dispatch between them.

``naive.py`` is the kernel's executable specification in torch. Installed as ``vllm_specext.kernels``. Chain drafting
runs on vLLM's own kernels, so there is none here yet.
"""
