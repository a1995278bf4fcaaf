"""Remove what no run needs any more from a store. Without --delete it only tells.

    python scripts/gc.py                                  what would go, and how much it is
    python scripts/gc.py --delete
    python scripts/gc.py --output-dir /data/outputs --unfinished --delete

A result is needed by every run (outputs/runs/*, outputs/sweeps/*/*) that planned it or links to it: remove a run's
folder to let go of its results. Replaced results (.old) and leftovers of crashes go; a stage that stopped with a
checkpoint stays while a run would go on from it, unless --unfinished; what is being built stays. Other places that use
this store (path:... of another output_dir) cannot be seen from here: name those results with --keep.
Exit status: 0; 2 where there is no store, or a run that cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.ask.script import run_script
from pipeline.collect import Item, remove, runs_below, survey
from pipeline.messages import Refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delete", action="store_true", help="do it")
    parser.add_argument("--unfinished", action="store_true", help="also what a run would resume from a checkpoint")
    parser.add_argument(
        "--keep", action="append", default=[], metavar="RESULT", help="a folder of the store that stays"
    )
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"), help="the output_dir of the runs")
    parser.add_argument("--all", action="store_true", help="list the needed results too")
    arguments = parser.parse_args()
    try:
        items = survey(arguments.output_dir, arguments.unfinished, arguments.keep)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 2
    show(items, arguments.output_dir, arguments.all)
    superfluous = [item for item in items if not item.keep]
    if not superfluous:
        print("nothing to remove")
        return 0
    if not arguments.delete:
        print(f"would remove {len(superfluous)} of {len(items)}, {megabytes(superfluous)}: add --delete to do it")
        return 0
    removed = [item for item in superfluous if remove(item, arguments.output_dir)]
    for item in superfluous:
        if item not in removed:
            print(f"kept    {item.folder.name}: in use by now")
    print(f"removed {len(removed)} of {len(items)}, {megabytes(removed)}")
    return 0


def show(items: list[Item], output_dir: Path, everything: bool) -> None:
    runs = sum(1 for _ in runs_below(output_dir))
    needed = [item for item in items if item.keep.startswith("needed")]
    print(f"{output_dir / 'store'}: {len(items)} folders, {megabytes(items)}")
    print(f"keep    {len(needed)} results, {megabytes(needed)}, that {runs} runs need")
    for item in items:
        if item in needed and not everything:
            continue
        name = item.folder.relative_to(output_dir / "store")
        kept = f"  ({item.keep})" if item.keep else ""
        print(f"{'keep' if item.keep else 'remove':7} {name!s:42} {megabytes([item]):>10}  {item.what}{kept}")


def megabytes(items: list[Item]) -> str:
    return f"{sum(item.size for item in items) / 1e6:,.1f} MB"


if __name__ == "__main__":
    run_script(main)
