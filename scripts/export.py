"""Write a model as a plain Hugging Face folder, with a model card that tells scores, recipe and lineage.

    python scripts/export.py outputs/runs/r1_style/stages/general_rl exported/general_rl
    python scripts/export.py --merge outputs/runs/lora/stages/reasoning_rl exported/merged     an adapter: whole weights

Loads with AutoModelForCausalLM.from_pretrained(DIR). The copy is compared with what was sealed. DIR must be new or
empty. Exit status: 0; 1 where the copy could not be made or is not what was sealed; 2 bad input.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.artifacts import adapter_base, model_folder_fault
from pipeline.ask.card import model_card, model_port
from pipeline.ask.evaluations import evaluations_of
from pipeline.ask.locate import Subject, model_folder, refused, subject_at
from pipeline.lineage import save
from pipeline.messages import Refused
from pipeline.store import digest_folder

MERGED_DTYPES = ("float32", "bfloat16")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--merge", action="store_true", help="merge an adapter into its base")
    parser.add_argument("--trust-remote-code", action="store_true", help="merging: the base brings code of its own")
    parser.add_argument("model", metavar="MODEL", help="a run's stages/STAGE, a result of a store, or a model's folder")
    parser.add_argument("target", metavar="DIR", type=Path)
    arguments = parser.parse_args()
    try:
        folder = model_folder(arguments.model)
        subject = subject_at(arguments.model)
        merges = check(arguments.model, folder, arguments.target, arguments.merge)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 2
    arguments.target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{arguments.target.name}-", dir=arguments.target.parent) as scratch:
        draft = Path(scratch) / "model"
        try:
            if merges:
                merge(folder, draft, subject, arguments.trust_remote_code)
            else:
                shutil.copytree(folder, draft)
            if not merges and digest_folder(draft) != sealed_digest(subject):
                print(f"{arguments.model}: its files are not what was sealed; see scripts/lineage.py", file=sys.stderr)
                return 1
            describe(draft, arguments.target.name, subject, merges)
            draft.chmod(arguments.target.parent.stat().st_mode & 0o777)
            if arguments.target.exists():
                arguments.target.rmdir()
            draft.rename(arguments.target)
        except OSError as error:
            print(f"{arguments.target}: could not be written: {error}", file=sys.stderr)
            return 1
    files = [path for path in arguments.target.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"{arguments.target}: {len(files)} files, {size:,.1f} MB; its card is README.md")
    return 0


def check(written: str, folder: Path, target: Path, merge_wanted: bool) -> bool:
    """Whether an adapter is to be merged. Raises Refused."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise refused(str(target), "is there already, and not empty", "name a new folder, or empty this one")
    if fault := model_folder_fault(folder):
        raise Refused([dataclasses.replace(fault, key=written)])
    is_adapter = (folder / "adapter_config.json").exists()
    if is_adapter and not merge_wanted:
        problem = f"is an adapter on {adapter_base(folder)}, which the folder would only name"
        raise refused(written, problem, "add --merge to write whole weights")
    if merge_wanted and not is_adapter:
        raise refused("--merge", f"{written} is no adapter: its weights are whole", "leave --merge out")
    return is_adapter


def sealed_digest(subject: Subject) -> str:
    own = subject.lineage.own
    return subject.lineage.digest or str(own.outputs[model_port(own)]["digest"])


def merge(folder: Path, draft: Path, subject: Subject, trust_remote_code: bool) -> None:
    """Whole weights in the dtype of the base, read back and compared (save_policy)."""
    os.environ["TQDM_DISABLE"] = "1"  # bars of libraries
    from stages.parts.policy.model import load_policy, save_policy

    own = subject.lineage.own
    dtype = own.outputs[model_port(own)].get("dtype", "float32")
    policy = load_policy(folder, dtype if dtype in MERGED_DTYPES else "float32", trust_remote_code)
    save_policy(draft, policy.model.state_dict(), policy)


def describe(draft: Path, title: str, subject: Subject, merged: bool) -> None:
    """README.md and lineage.json, whose digest is that of this folder: card included, merged or not."""
    own = subject.lineage.own
    port = subject.lineage.output or model_port(own)
    card = model_card(title, subject, evaluations_of(own.outputs[port]["digest"], subject.store), merged)
    (draft / "README.md").write_text(card)
    save(draft, dataclasses.replace(subject.lineage, output=port, digest=digest_folder(draft)))


if __name__ == "__main__":
    sys.exit(main())
