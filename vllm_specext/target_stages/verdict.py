"""What the check concludes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_specext.measure.turns import Turn

CLOSE = 0.05
"""How far the shares accepted at a depth, served and simulated, may be from each other."""
USEFUL = 1.3
"""Fewer tokens per verification do not pay for drafting anywhere."""


@dataclass(frozen=True)
class Simulated:
    """What simulated chains say of the same answers."""

    verifications: int
    depths: Sequence[int]
    """How many verifications accepted a token at depth 1, 2, ..."""

    @property
    def shares(self) -> list[float]:
        return [count / max(1, self.verifications) for count in self.depths]


@dataclass(frozen=True)
class Conditions:
    """How the target was run, and whether it is asked as it was while data were prepared."""

    dtype: str
    same_template: bool
    flags: dict[str, Any]
    """Of the chat template, which a server has to be told in every request."""


def judge(
    plain: Sequence[list[int]], drafted: Turn, simulated: Simulated, rounded: Simulated | None, conditions: Conditions
) -> dict[str, Any]:
    """``check.json``: the figures, ``remarks`` for people, and under ``refused`` why the drafter is not good, or
    ``None``. ``rounded`` is a simulation in the numbers that the engine has, where these are not float32."""
    told = drafted.speculation
    counts = [*told.accepted, *[0.0] * len(simulated.depths)][: len(simulated.depths)]
    served = [count / max(1.0, told.verifications) for count in counts]
    same = sum(mine == other for mine, other in zip(drafted.tokens, plain, strict=True))
    found: dict[str, Any] = {
        "prompts": len(plain),
        "dtype": conditions.dtype,
        "chain": len(simulated.depths),
        "identical": same == len(plain),
        "identical_answers": same,
        "served": _figures(int(told.verifications), served),
        "simulated": _figures(simulated.verifications, simulated.shares),
        "template": {"same": conditions.same_template, "flags": conditions.flags},
        "largest_difference": round(_apart(served, simulated.shares), 4),
    }
    found["remarks"] = remarks(found)
    found["refused"] = refusal(found, _cause(served, rounded, conditions))
    return found


def remarks(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{found['served']['tokens_per_verification']:.2f} tokens per verification on an engine, "
        f"{found['simulated']['tokens_per_verification']:.2f} simulated; {found['identical_answers']} of "
        f"{found['prompts']} answers have the tokens of plain decoding"
    ]
    if flags := found["template"]["flags"]:
        lines.append(
            f"the drafter learnt answers to the chat template with the flags {json.dumps(flags)}; requests have to "
            "give them too, as chat_template_kwargs"
        )
    return lines


def refusal(found: dict[str, Any], cause: str) -> str | None:
    """The first thing that is wrong. ``cause`` says why an engine and a simulation might differ."""
    tau = found["served"]["tokens_per_verification"]
    if found["dtype"] == "float32" and not found["identical"]:
        return (
            f"{found['prompts'] - found['identical_answers']} of {found['prompts']} answers with drafts have other "
            "tokens than plain decoding in float32, where all have to be the same; this is a mistake of the plug-in."
        )
    if found["largest_difference"] > CLOSE:
        return (
            f"the shares accepted at a depth differ by {found['largest_difference']:.2f} between an engine and the "
            f"simulation, but at most {CLOSE} is expected: {cause}."
        )
    if tau < USEFUL:
        return (
            f"the drafter brings {tau:.2f} tokens per verification, but at least {USEFUL} are expected of a useful "
            "one; more data, more steps or a higher learning rate are needed."
        )
    return None


def _cause(served: Sequence[float], rounded: Simulated | None, conditions: Conditions) -> str:
    if not conditions.same_template:
        return "the target's chat template is another one than when the data were prepared"
    if rounded is not None and _apart(served, rounded.shares) <= CLOSE:
        return f"the dtype makes the difference, as a simulation in {conditions.dtype} agrees with the engine"
    return "neither the chat template nor the dtype makes the difference"


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _figures(verifications: int, shares: Sequence[float]) -> dict[str, Any]:
    return {
        "tokens_per_verification": round(1 + sum(shares), 4),
        "verifications": verifications,
        "accepted_per_depth": [round(share, 4) for share in shares],
    }
