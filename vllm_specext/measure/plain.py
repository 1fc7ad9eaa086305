"""Plain decoding, in two rows where they differ: as vLLM has it, and as it is where the plug-in is installed.

The plug-in gives plain decoding on a CPU faster kernels, too (``docs/cpu.md``). So there the speed of every row is told
relative to vLLM as it is, and the row of plain decoding shows what comes from the kernels alone. On a GPU the plug-in
changes nothing of plain decoding. Tokens are always compared with plain decoding as it is where the plug-in is
installed, because drafts are verified with its arithmetic.
"""

from vllm_specext.measure.arguments import on_gpu

PLAIN = "plain"
STOCK = "plain-stock"
STOCK_ENVIRONMENT = {"VLLM_SPECEXT_CPU_KERNELS": "stock", "VLLM_SPECEXT_NATIVE": "0"}
"""What the process of the row ``STOCK`` has in its environment: neither the wheel's kernels nor ours in C++."""
SEEDED_ENVIRONMENT = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
"""What the process of the row ``PLAIN`` has in its environment where answers are drawn with seeds."""
WHAT_STOCK_IS = "plain decoding by vLLM as it is, without the plug-in's kernels"


def has_stock_row() -> bool:
    """Whether plain decoding is another thing on this machine where the plug-in is installed."""
    return not on_gpu()
