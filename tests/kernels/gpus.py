"""What GPUs that are not there have."""

from vllm_specext.kernels.tree_attention.tiles import KIB, Processors

A100 = Processors(108, 164 * KIB, 163 * KIB, queries_in_memory=False)
RTX_4090 = Processors(128, 100 * KIB, 99 * KIB, queries_in_memory=False)
H100 = Processors(132, 228 * KIB, 227 * KIB, queries_in_memory=True)
B200 = Processors(148, 228 * KIB, 227 * KIB, queries_in_memory=True)
RTX_5090 = Processors(170, 100 * KIB, 99 * KIB, queries_in_memory=False)
