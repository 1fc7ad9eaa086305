"""Which CPU bodies stand for which of vLLM's Triton kernels, read from our source, and with which parameters."""

import ast
from dataclasses import dataclass

from vllm_specext.engine.changes.against.definitions import Definitions
from vllm_specext.engine.changes.against.facts import of_function
from vllm_specext.engine.changes.against.syntax import FUNCTIONS, dotted_name
from vllm_specext.engine.changes.against.tree import Tree

TABLE = "vllm_specext.cpu_runner.install:kernel_bodies"
REFUSED = "vllm_specext.cpu_runner.unsupported:KERNELS_WITHOUT_BODY"
LAUNCH_OPTIONS = {"num_warps", "num_stages"}
"""Triton's own keywords, which a launch passes beside the kernel's."""


@dataclass(frozen=True)
class Body:
    kernel: str
    """Dotted path in vLLM."""
    body: str
    """``module.function`` in ``cpu_runner``."""
    parameters: tuple[str, ...]
    optional: tuple[str, ...] = ()
    """Those among the parameters that a launch may leave out."""

    def takes(self, kernel: str) -> bool:
        """Whether a launch of a kernel with these parameters fits: all are passed by position, but those in capitals,
        which are passed by name, and those that are optional here, which have the same name there, with ``_ptr`` or
        without (``cpu_runner/launches.py``)."""
        theirs = [name for name in kernel.split() if name not in LAUNCH_OPTIONS]
        ours = [name for name in self.parameters if name not in LAUNCH_OPTIONS]
        given = [name for name in theirs if not name.isupper() and name.removesuffix("_ptr") not in self.optional]
        required = [name for name in ours if not name.isupper() and name not in self.optional]
        constants = [[name for name in names if name.isupper()] for names in (theirs, ours)]
        return constants[0] == constants[1] and len(given) == len(required)


def bodies(ours: Tree) -> list[Body]:
    """The kernels with a body, of a tree of ours that has the table; none of one that has not."""
    definitions, found = Definitions(ours), []
    table = definitions.find(TABLE)
    if table is None or table.node is None:
        return []
    texts = _texts([*table.module.body, *table.node.body])
    for node in ast.walk(table.node):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                body = dotted_name(value)
                made = definitions.find(f"vllm_specext.cpu_runner.{body}")
                assert key is not None
                assert made is not None, body
                assert isinstance(made.node, FUNCTIONS), body
                parameters = of_function(made.node.args)
                optional = tuple(each.name for each in parameters if not each.required)
                found.append(Body(_text(key, texts), str(body), tuple(each.name for each in parameters), optional))
    return found


def refused_kernels(ours: Tree) -> list[str]:
    """The kernels that are refused on a CPU, by their paths in vLLM."""
    module = ours.module(REFUSED.partition(":")[0])
    for node in module.body if module else []:
        if isinstance(node, ast.AnnAssign) and dotted_name(node.target) == REFUSED.partition(":")[2]:
            assert module is not None
            assert isinstance(node.value, ast.Dict)
            return [_text(key, _texts(module.body)) for key in node.value.keys if key is not None]
    return []


def _texts(body: list[ast.stmt]) -> dict[str, str]:
    """The plain names that stand for text, in the order of their statements."""
    texts: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                texts[node.targets[0].id] = _text(node.value, texts)
            except (LookupError, TypeError):
                continue
    return texts


def _text(node: ast.expr, texts: dict[str, str]) -> str:
    """What an f-string or a constant says; ``LookupError`` for a name that stands for no text, ``TypeError`` for all
    else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each, texts) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, texts)
    if isinstance(node, ast.Name):
        return texts[node.id]
    raise TypeError(f"no text: {ast.unparse(node)}")
