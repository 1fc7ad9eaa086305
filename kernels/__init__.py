"""The project's kernels, one folder each: the interface in ``__init__.py``, and ``naive.py``, its executable
specification in torch, which is also what runs where there is no Triton kernel. Installed as ``vllm_specext.kernels``.
"""
