"""Where does a model or a data set come from? Its tree, down to sources, seeds and commits.

    python scripts/lineage.py outputs/runs/r1_style/stages/general_rl          a stage of a run
    python scripts/lineage.py outputs/store/rl-2e88105ec89a5cf4/model          an output
    python scripts/lineage.py --check /somewhere/else/model                    a copy: is its content still the same?

Exit status: 0; 1 where --check finds other content than was sealed; 2 where there is nothing to tell.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.ask.locate import Subject, subject_at
from pipeline.ask.script import run_script
from pipeline.ask.tree import tree
from pipeline.lineage import as_json
from pipeline.messages import Refused
from pipeline.store import digest_folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the records themselves")
    parser.add_argument("--check", action="store_true", help="read every byte and compare with what was sealed")
    parser.add_argument("path", help="a result in a store, a run's stages/STAGE, or an output's folder, moved or not")
    arguments = parser.parse_args()
    try:
        subject = subject_at(arguments.path)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 2
    print(as_json(subject.lineage) if arguments.json else tree(subject.lineage))
    return check(subject) if arguments.check else 0


def check(subject: Subject) -> int:
    """Compare the outputs that are there with their sealed digests."""
    changed = []
    for port, output in subject.outputs.items():
        folder = subject.folder if subject.lineage.output else subject.folder / port
        sealed = subject.lineage.digest or output["digest"]
        if digest_folder(folder) != sealed:
            changed.append(port)
    print(f"CHANGED since it was sealed: {', '.join(changed)}" if changed else "content as it was sealed")
    return 1 if changed else 0


if __name__ == "__main__":
    run_script(main)
