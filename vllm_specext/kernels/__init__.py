"""The project's kernels, one folder each: the interface in ``__init__.py``, the Triton code in ``kernel.py``, and
``naive.py``, the executable specification in torch, which is also what runs where there is no Triton. The walks and the
expansion of draft trees have their specifications in ``vllm_specext.tree``.
"""
