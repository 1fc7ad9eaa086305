"""Penalties, bad words and budgets for thinking at the nodes of draft trees, where the text before a row has the path
to its node.

vLLM's own kernels take all earlier rows of a request for that text, which holds for chains. These change the same
logits in the same way, with the path's tokens in the place of the rows': Triton on a GPU, numpy on a CPU.
"""

from torch import Tensor

from vllm_specext.kernels.path_text import naive
from vllm_specext.kernels.path_text.rows import BadWords, Paths, Penalties, Said, Thinking
from vllm_specext.kernels.pointers import HAS_TRITON


def penalise(logits: Tensor, paths: Paths, penalties: Penalties) -> None:
    """Change ``logits`` ``[L, V]`` float32 in place, as vLLM does: tokens of the prompt, the answer or the path are
    divided by the repetition penalty, or multiplied where they are negative; then those of the answer and the path lose
    the frequency penalty as often as they are there, and the presence penalty once."""
    if logits.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.path_text import kernel  # a CPU has no use for Triton, nor time to import it

        return kernel.penalise(logits, paths, penalties)
    return naive.penalise(logits, paths.slots, naive.drafted_before(*paths), *penalties)


def ban(logits: Tensor, paths: Paths, words: BadWords, said: Said, most: int) -> None:
    """Set ``logits`` ``[L, V]`` float32 to -inf in place for the last token of every bad word whose other tokens end
    the answer and the path. ``most``: bad words of a request of these rows."""
    if logits.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.path_text import kernel

        return kernel.ban(logits, paths, words, said, most)
    return naive.ban(logits, paths.slots, naive.drafted_before(*paths), *words, *said)


def end_thinking(logits: Tensor, paths: Paths, thinking: Thinking, said: Said) -> None:
    """Force the next token of the end marker in ``logits`` ``[L, V]`` float32, in place, in the rows that would think
    on after their budget: those with an open beginning in the text and the path. The CPU looks into the text for the
    markers, and the GPU takes their last places."""
    if logits.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.path_text import kernel

        return kernel.end_thinking(logits, paths, thinking, said)
    markers = thinking.start, thinking.natural_end, thinking.forced_end
    drafted = naive.drafted_before(*paths)
    return naive.end_thinking(logits, paths.slots, drafted, thinking.budgets, said.tokens, said.total_lens, *markers)
