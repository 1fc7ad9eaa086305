"""What a version of vLLM breaks of our adapter, and what it changed inside of what we replace.

Every question names a dotted path, so that the facts on these paths (``asked``) are all that is needed of a version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from vllm_specext.engine.changes.against.attributes import attribute_uses
from vllm_specext.engine.changes.against.facts import Fact
from vllm_specext.engine.changes.against.kernels import Body, bodies, refused_kernels
from vllm_specext.engine.changes.against.tree import PACKAGE, tree_of
from vllm_specext.engine.changes.against.uses import Inheritance, Use, inheritances, uses
from vllm_specext.engine.changes.catalogue import PACKAGE as OURS
from vllm_specext.engine.changes.catalogue import catalogue
from vllm_specext.engine.changes.guard import fits, signatures
from vllm_specext.engine.changes.relied_on import IF_THERE, MOVED, RELIED_ON
from vllm_specext.engine.changes.replacements import Replacement


class Source(Protocol):
    """Where facts come from: a tree, or what was recorded of one."""

    version: str

    def get(self, path: str) -> Fact | None: ...


@dataclass(frozen=True)
class Finding:
    path: str
    """In vLLM."""
    what: str
    """A sentence."""
    place: str
    """In ours."""


@dataclass(frozen=True)
class Adapter:
    """What we rely on in vLLM."""

    signatures: dict[str, str]
    catalogue: tuple[Replacement, ...]
    uses: list[Use]
    inheritances: list[Inheritance]
    bodies: list[Body]
    refused: list[str]
    attributes: list[Use]
    """What is read of vLLM's objects."""

    def asked(self) -> set[str]:
        """Every path that ``broken`` and ``changed_inside`` ask for."""
        paths = {use.path for use in self.uses} | {use.instead for use in self.uses if use.instead}
        paths |= self.signatures.keys() | MOVED.keys() | set(MOVED.values())
        paths |= {path for entry in self.catalogue for path in _needed(entry)}
        paths |= {path for use in self.attributes for path in (use.path, use.instead) if path}
        paths |= {body.kernel for body in self.bodies} | set(self.refused)
        for each in self.inheritances:
            paths |= {f"{base}.{name}" for base in each.bases for name in each.defines | each.sets}
        return paths


@cache
def our_adapter() -> Adapter:
    """What this package relies on, read from its source."""
    ours = tree_of(OURS, OURS.name)
    return Adapter(
        signatures(),
        catalogue(),
        uses(ours),
        inheritances(ours),
        bodies(ours),
        refused_kernels(ours),
        attribute_uses(ours),
    )


def broken(adapter: Adapter, vllm: Source, before: Source | None = None) -> list[Finding]:
    """What of ``adapter`` does not fit ``vllm``. Names that a base class got since ``before`` are found too."""
    found = [
        *_signatures(adapter, vllm),
        *(each for entry in adapter.catalogue for each in _targets(entry, vllm)),
        *(each for use in adapter.uses for each in _use(use, vllm)),
        *_kernels(adapter, vllm),
        *(each for one in adapter.inheritances for each in _inheritance(one, vllm, before)),
        *(each for use in adapter.attributes if before is not None for each in _attribute(use, vllm, before)),
    ]
    first = {(finding.path, finding.what): finding for finding in reversed(found)}
    return [finding for finding in dict.fromkeys(found) if first[finding.path, finding.what] is finding]


def changed_inside(adapter: Adapter, vllm: Source, before: Source) -> list[Finding]:
    """The callables that we replace, wrap or rely on whose body is another than ``before``."""
    kernels = {body.kernel: f"cpu_runner/{body.body.replace('.', '.py: ')}" for body in adapter.bodies}
    roles = dict.fromkeys(RELIED_ON, ("we override it or call it", "engine/changes/relied_on.py"))
    roles |= {path: ("it is replaced", place) for path, place in kernels.items()}
    for entry in adapter.catalogue:
        if entry.kind == "replaced" and entry.signature is not None:
            does = "it is wrapped" if entry.wraps else "it is replaced"
            roles |= dict.fromkeys((entry.target, *entry.also), (does, entry.made_by))
    found = []
    for path, (does, place) in roles.items():
        now, then = _fact(path, vllm), _fact(path, before)
        if now and then and now.kind in ("function", "property") and now.body != then.body:
            found.append(Finding(path, does, place))
    return found


def _fact(path: str, vllm: Source) -> Fact | None:
    found = vllm.get(path)
    return vllm.get(MOVED[path]) if found is None and path in MOVED else found


def _signatures(adapter: Adapter, vllm: Source) -> Iterator[Finding]:
    places = {path: entry for entry in adapter.catalogue for path in (entry.target, *entry.also)}
    for path, expected in adapter.signatures.items():
        entry = places.get(path)
        place = entry.made_by if entry else "engine/changes/relied_on.py"
        fact = _fact(path, vllm)
        if fact is None:
            if path not in IF_THERE:
                yield Finding(path, "it is missing", place)
        elif fact.names is None or not fits(expected, fact.names):
            what = f"it takes ({fact.names or ''}), not ({expected})"
            yield Finding(path, what, place)


def _needed(entry: Replacement) -> list[str]:
    """What has to be there for a replacement that is no function with a signature."""
    targets = [target for target in (entry.target, *entry.also) if target.startswith(f"{PACKAGE}.")]
    return [target.rpartition(".")[0] for target in targets] if entry.kind == "added" else targets


def _targets(entry: Replacement, vllm: Source) -> Iterator[Finding]:
    if entry.signature is None:
        for path in _needed(entry):
            if vllm.get(path) is None:
                yield Finding(path, "it is missing", entry.made_by)


def _use(use: Use, vllm: Source) -> Iterator[Finding]:
    fact = vllm.get(use.path) or (vllm.get(use.instead) if use.instead else None)
    if fact is None:
        yield Finding(use.path, "it is missing", use.place)
    elif use.call is not None and fact.parameters is not None and (wrong := _misfit(use, fact)):
        yield Finding(use.path, wrong, use.place)


def _attribute(use: Use, vllm: Source, before: Source) -> Iterator[Finding]:
    """An attribute that is lost since ``before``. What a class gets from other packages no source of vLLM's shows."""
    paths = [path for path in (use.path, use.instead) if path]
    if any(map(before.get, paths)) and not any(map(vllm.get, paths)):
        yield Finding(use.path, "it is missing", use.place)


def _misfit(use: Use, fact: Fact) -> str | None:
    """What is wrong with a call."""
    call, parameters = use.call, fact.parameters
    assert call is not None
    assert parameters is not None
    kinds = {each.kind for each in parameters}
    by_position = [each for each in parameters if each.kind == ""]
    named = {each.name for each in parameters if each.kind in ("", "k")}
    if "**" not in kinds and (unknown := [name for name in call.keywords if name not in named]):
        return f"it does not take {', '.join(unknown)}"
    if "*" not in kinds and call.positional > len(by_position):
        return f"it takes {len(by_position)} arguments by position, not {call.positional}"
    given = {*call.keywords, *(each.name for each in by_position[: call.positional])}
    missing = [each.name for each in parameters if each.required and each.name not in given]
    return f"it requires {', '.join(missing)} too" if call.is_whole and missing else None


def _kernels(adapter: Adapter, vllm: Source) -> Iterator[Finding]:
    for body in adapter.bodies:
        place, fact = f"cpu_runner/{body.body.replace('.', '.py: ')}", vllm.get(body.kernel)
        if fact is None:
            yield Finding(body.kernel, "it is missing", place)
        elif fact.names is None or not body.takes(fact.names):
            what = f"it takes ({fact.names or ''}), our body ({' '.join(body.parameters)})"
            yield Finding(body.kernel, what, place)
    for path in adapter.refused:
        if vllm.get(path) is None:
            yield Finding(path, "it is missing", "cpu_runner/unsupported.py")


def _inheritance(one: Inheritance, vllm: Source, before: Source | None) -> Iterator[Finding]:
    known = {path.rpartition(".")[2] for path in IF_THERE}
    for base in one.bases:
        for name in sorted((one.sets | one.defines) - known):
            path = f"{base}.{name}"
            fact = vllm.get(path)
            if fact is None:
                continue
            if name in one.sets and fact.kind == "property" and not fact.settable:
                yield Finding(path, f"{one.name} sets it, and it is a property without a setter", one.place)
            elif before is not None and before.get(base) is not None and before.get(path) is None:
                yield Finding(path, f"it is new, and {one.name} has another thing of that name", one.place)
