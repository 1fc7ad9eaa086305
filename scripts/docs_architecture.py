"""Tables of ``docs/architecture.md`` that come from the code: the folders and what each imports, and the path through a
step that a reader takes."""

import ast
import re
from collections.abc import Callable

from scripts.imports import PACKAGE, between_folders, folder_of, modules, outside
from scripts.markdown import code, table

SOURCE = f"https://github.com/vllm-specext/vllm-specext/blob/main/{PACKAGE.name}"
BASE = "root files"
"""The files that are in no folder: keys, declarations, the methods by name, errors."""

FIRST_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z])")

READING_PATH = (
    ("vLLM asks for drafts, which becomes a value", "engine/drafting/speculator.py", "StepSpeculator.propose"),
    ("what a drafter knows of a step", "engine/drafting/step.py", "Step"),
    ("what the drafter reads of it", "engine/drafting/hidden_states.py", "HiddenStateDrafter.features"),
    ("what is GRIFFIN's own", "methods/griffin/speculator.py", "GriffinDrafter.load"),
    ("the accepted paths are read, or all rows", "engine/drafting/tree_speculator.py", "TreeSpeculator.draft"),
    ("the accepted paths as a pass reads them", "engine/drafting/paths.py", "PathInputs.take"),
    ("how large the tree is", "engine/drafting/tree_sizes.py", "TreeSizes.shape_for"),
    ("how it shrinks with the load", "tree/budget.py", "shape_for"),
    ("the tree grows, level by level", "engine/drafting/growth.py", "grow"),
    ("which nodes a level keeps", "tree/expansion.py", "Expansion.grow"),
    ("one pass over tree nodes", "engine/drafting/node_passes.py", "NodePasses.__call__"),
    ("the drafter itself", "methods/griffin/model.py", "GriffinDrafter"),
    ("the tree is handed over", "engine/drafting/tree_draft.py", "hand_over"),
    ("how a tree is written down", "tree/topology.py", "Topology"),
    ("the next step lays it out over its rows", "engine/verification/tree_states.py", "TreeStates.lay_out"),
    ("positions and who sees whom", "kernels/tree_layout/naive.py", "lay_out"),
    ("vLLM's hooks around the target's pass", "engine/verification/model_state.py", "with_our_verification"),
    ("the phases of the step", "engine/verification/tree_steps.py", "TreeSteps"),
    ("the values between them", "engine/verification/layout.py", "TreeLayout"),
    ("the target's layers see trees", "engine/verification/attention.py", "wrap_target_layers"),
    ("attention over a tree", "kernels/tree_attention/naive.py", "tree_attention"),
    ("the target's sampler draws at every node", "engine/verification/sampler.py", "TreeVerifier"),
    ("the walk along what was drawn", "tree/walk.py", "accept_tree"),
    ("keys and values of the accepted path move", "engine/verification/compaction.py", "Compaction"),
)
"""Step, file and the function or class to begin at, in the order of reading."""


def folders() -> str:
    """What each folder holds, by the first sentence of its docstring, and what it imports of the others."""
    graph = between_folders()
    of_vllm = {folder_of(module) for module in modules() if "vllm" in outside(module)}
    rows = []
    for folder in sorted(name for name in graph if not name.endswith(".py")):
        document = ast.get_docstring(ast.parse((PACKAGE / folder / "__init__.py").read_text(encoding="utf-8"))) or ""
        sentence = FIRST_SENTENCE.split(" ".join(document.split()))[0].replace("``", "`").rstrip(".")
        others = sorted({BASE if other.endswith(".py") else code(other) for other in graph[folder]})
        rows.append((code(folder), sentence, ", ".join(others) or "none", "yes" if folder in of_vllm else "no"))
    return table(("folder", "what it holds", "imports of ours", "imports vLLM"), rows)


def reading_path() -> str:
    """The files in order, each with a link to where to begin."""
    rows = []
    for step, file, name in READING_PATH:
        rows.append((step, f"[{code(name)}]({SOURCE}/{file}#L{line_of(file, name)})", code(file)))
    lines = sum(len((PACKAGE / file).read_text(encoding="utf-8").splitlines()) for _, file, _ in READING_PATH)
    return f"{table(('step', 'begin at', 'file'), rows)}\n\n{len(READING_PATH)} files, {lines:,} lines."


def line_of(file: str, name: str) -> int:
    """Line of a function, class or method; ``LookupError`` where the file has none of that name."""
    body = ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body
    line = 0
    for part in name.split("."):
        named = (node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part)
        found = next(named, None)
        if found is None:
            raise LookupError(f"{file} has no {name}")
        body, line = found.body, found.lineno
    return line


TABLES: dict[str, Callable[[], str]] = {"folders": folders, "reading path": reading_path}
