"""What is wrong with a soak's figures, and the table of them."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

GROWTH = 0.03
"""Share by which the last quarter's memory may lie above the second's."""
SHORTEST = 10
"""Minutes below which memory is not judged: vLLM's processes take some minutes to reach theirs."""


def problems(result: dict[str, Any]) -> list[str]:
    """A sentence each; empty when all is well."""
    found = []
    if differing := result["differing"]:
        found.append(f"{len(differing)} answers differ from plain decoding.")
    found += result["unexpected"]
    if not result["compared_tokens"]:
        found.append("no answer was compared.")
    rest = {name: result["afterwards"][name] for name in ("running", "waiting", "cache_usage")}
    if any(rest.values()):
        found.append(f"the server does not come to rest: {rest}.")
    if result["minutes"] >= SHORTEST and result["memory_growth"] > GROWTH:
        found.append(f"memory grew by {result['memory_growth']:.1%} from the second to the last quarter.")
    for death in result["deaths"]:
        found += [f"{death['killed']} killed: {reason}" for reason in _of_death(death)]
    return found


def _of_death(death: dict[str, Any]) -> list[str]:
    wrong = {
        f"{death['hanging']} of {death['streams']} clients wait for ever.": death["hanging"],
        f"{death['wrong']} clients got other tokens than those of plain decoding.": death["wrong"],
        "no client noticed.": not death["failed"],
        f"the next request: {death['next_request']}.": death["next_request"] in ("answered", "no answer"),
        "the server still runs.": death["server_ended_with_status"] is None,
    }
    return [reason for reason, applies in wrong.items() if applies]


def compared(result: dict[str, Any]) -> int:
    """Finished answers that were held against plain decoding. Files of before the count of others left none out."""
    asked = result["requests"]
    return int(asked["answered whole"] + asked["answered as a stream"] - result.get("uncompared", 0))


def table(result: dict[str, Any]) -> Table:
    shown = Table(title=f"{result['minutes']:g} minutes of {result['method']}", box=SIMPLE_HEAD)
    shown.add_column("what")
    shown.add_column("figure", justify="right")
    for name, value in rows(result):
        shown.add_row(name, value)
    return shown


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and figure of what documents show."""
    requests, memory = result["requests"], result["memory_by_quarter"]
    disconnected = requests["disconnected while waiting"] + requests["disconnected within the message"]
    made = [
        ("clients at once", str(result["clients"])),
        ("answers compared with plain decoding", str(compared(result))),
        ("different", str(len(result["differing"]))),
        ("tokens compared", str(result["compared_tokens"])),
        ("streams aborted by the client", str(requests["aborted"])),
        ("sockets closed", str(disconnected)),
        ("faulty messages refused", str(sum(result["refused"].values()))),
        ("answers of the wrong status", str(len(result["unexpected"]))),
        ("preemptions", str(result["preemptions"])),
        ("highest share of the cache in use", f"{result['highest_cache_usage']:.0%}"),
        ("tokens per verification", f"{result['tokens_per_verification']:.2f}"),
        ("memory at start, at the end, MiB", f"{result['memory_at_start']:.0f}, {result['memory_at_end']:.0f}"),
        ("memory by quarter, medians, MiB", ", ".join(f"{mebibytes:.0f}" for mebibytes in memory)),
    ]
    for death in result["deaths"]:
        made.append((f"{death['killed']} killed: clients told after, s", f"{death['seconds_until_clients_knew']:.1f}"))
        made.append((f"{death['killed']} killed: server ended after, s", f"{death['seconds_until_server_ended']:.1f}"))
    return made
