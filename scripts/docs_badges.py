"""Draw the README's badges from the project's own files, so that no other host is asked.

python -m scripts.docs_badges
"""

import re
import tomllib
from pathlib import Path

from vllm_specext import __version__
from vllm_specext.engine.changes.guard import SUPPORTED

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "figures" / "badges.svg"
CHARACTER, PADDING, HEIGHT, GAP = 6.6, 7, 20, 6


def facts() -> dict[str, str]:
    """What the badges say, by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    first, beyond = map(int, re.findall(r"3\.(\d+)", project["requires-python"]))
    return {
        "version": __version__,
        "licence": project["license"],
        "Python": f"3.{first} to 3.{beyond - 1}",
        "vLLM": " and ".join(SUPPORTED),
    }


def badges() -> str:
    """Each name on grey, what it is on blue."""
    parts, left = [], 0.0
    for name, value in facts().items():
        for text, color in ((name, "#555555"), (value, "#2f5f9e")):
            inner = CHARACTER * len(text)
            width = inner + 2 * PADDING
            parts += [
                f'  <rect x="{left:.1f}" width="{width:.1f}" height="{HEIGHT}" fill="{color}"/>',
                f'  <text x="{left + PADDING:.1f}" y="14" textLength="{inner:.1f}">{text}</text>',
            ]
            left += width
        left += GAP
    said = ", ".join(f"{name} {value}" for name, value in facts().items())
    size = f'width="{left - GAP:.0f}" height="{HEIGHT}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"  <title>{said}</title>",
        "  <style>text { font: 11px Verdana, 'DejaVu Sans', sans-serif; fill: #ffffff }</style>",
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    FILE.write_text(badges(), encoding="utf-8")
