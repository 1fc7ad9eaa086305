"""vLLM's fused kernels in a model that was set up to be compiled.

Such a model has its norms, activations and rotary embeddings in torch, for the compiler to fuse. Run layer by layer it
is not compiled, and each of them would be several small kernels.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn
from vllm.ir.op import IrOp
from vllm.model_executor.custom_op import CustomOp
from vllm.platforms import current_platform

from vllm_specext.engine.changes.replacements import replaces


@replaces(
    "vllm.model_executor.custom_op.CustomOp._forward_method",
    name="fused kernels",
    why=(
        "a model that is to be compiled has its norms, activations and rotary embeddings in torch, operation by "
        "operation; SWIFT runs the layers one by one, uncompiled"
    ),
    how=(
        "while SWIFT's drafts are captured, and no longer, the target's own modules take the kernels that vLLM takes "
        "with --enforce-eager"
    ),
    upstream="none: vLLM chooses once for a model",
    until="vLLM lets a model run uncompiled with its kernels",
    kind="set",
)
@contextmanager
def fused_kernels(model: nn.Module) -> Iterator[None]:
    """Let ``model`` run with the kernels that vLLM takes with ``--enforce-eager``, inside of this context."""
    if not current_platform.is_cuda():
        yield
        return
    operations = {module: module._forward_method for module in model.modules() if isinstance(module, CustomOp)}
    with ExitStack() as priorities:
        for operation in IrOp.registry.values():
            if "vllm_c" in operation.supported_providers():
                priorities.enter_context(operation.set_priority(["vllm_c", "native"]))
        try:
            for module in operations:
                module._forward_method = module.forward_cuda
            yield
        finally:
            for module, forward in operations.items():
                module._forward_method = forward
