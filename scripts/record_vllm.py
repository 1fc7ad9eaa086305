"""Keep what the adapter asks of a vLLM, so that tests know that version without having it.

    python -m scripts.record_vllm FOLDER     read an unpacked wheel, or its file, and write tests/data/vllm-X.Y.json

Kept are names, their parameters and digests of their bodies, and no text of vLLM's.
"""

import argparse
from pathlib import Path

from vllm_specext.engine.changes.against.comparison import our_adapter
from vllm_specext.engine.changes.against.facts import Facts
from vllm_specext.engine.changes.against.recorded import recorded
from vllm_specext.engine.changes.against.tree import open_tree

DATA = Path(__file__).parents[1] / "tests" / "data"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.record_vllm", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="an unpacked wheel, or a wheel's file")
    facts = Facts(open_tree(parser.parse_args().folder))
    file = DATA / f"vllm-{'.'.join(facts.version.split('.')[:2])}.json"
    file.write_text(recorded(our_adapter(), facts), encoding="utf-8")
    print(file.relative_to(DATA.parents[1]))


if __name__ == "__main__":
    main()
