"""Everything about this project that has to be measured on an NVIDIA GPU, in one command that fits into minutes.

    python -m benchmarks.gpu_suite

Parts run one after another, each in a process of its own with a time limit, so that a crash costs one part. What is
measured is written to ``benchmarks/results/<gpu>/suite.json`` and ``suite.csv`` as soon as a part ends, and a part that
is done for the same sources, versions and GPU is not run again. Parts on kernels need torch and Triton alone; those on
the engine need vLLM.
"""
