"""Is anything lost when something dies? Kills, damage, a full disk, stale locks and rivals, on a tiny recipe.

    python scripts/torture.py --kills 20
    python scripts/torture.py --kills 7 engine=zero3 launcher.num_ranks=2     # any override of run.py

Runs a recipe once undisturbed, then many times disturbed: kill -9 of the driver or of a rank in every phase (the phase
is read off the files that a run leaves behind, before and after the kill), checkpoints truncated or with a bit flipped,
a disk that fills up (a small tmpfs), locks of the dead, eight runs on one store. After each the same command must come
to its end, and every digest, final metric and metric line must be those of the undisturbed run, clock values apart.
Exit status 1 where anything is lost.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.watching import descendants, differences, left_behind, phase_of, results

ROOT = Path(__file__).resolve().parent.parent
RECIPE = [
    "pipeline=r1_style", "experiment=smoke", "until=reasoning_rl.eval", "launcher.threads=1",
    "launcher.parallel_stages=1", "stages.base.evaluate=false", "stages.cold_start.evaluate=false",
    "stages.base.steps=12", "stages.cold_start.steps=6", "stages.cold_start.save_every_steps=2", "G=4",
    "stages.cold_start.examples_per_step=16", "stages.reasoning_rl.steps=8", "stages.reasoning_rl.save_every_steps=3",
    "stages.reasoning_rl.monitor_problems=4", "stages.reasoning_rl.prompts_per_step=2", "evaluation.max_problems=4",
    "evaluation.suites=[reasoning]", "scale.max_response_tokens=24",
]  # fmt: skip
SHARED = ("problems", "base_model")  # computed once, by the undisturbed run
# One campaign: these kills one after the other in one run, which goes on from each. The second half is on SFT.
PHASES = ("start", "sampling", "update", "weight sync", "checkpoint write", "publish", "evaluation")
CAMPAIGNS = (
    [(phase, "evaluate" if phase == "evaluation" else "" if phase == "start" else "rl") for phase in PHASES],
    [("start", ""), *((phase, "sft") for phase in ("update", "checkpoint write", "publish")),
     ("sampling", "rl"), ("weight sync", "rl"), ("evaluation", "evaluate")],
)  # fmt: skip
PATIENCE = 3600.0  # seconds; a run that takes longer hangs (alone on a laptop it takes ten)
DISKS_KIB = (300, 3000, 9000)  # left free: not even the first file, a checkpoint, some checkpoints


@dataclass
class Site:
    """One output folder and the command that is tried in it."""

    folder: Path
    overrides: list[str]

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(ROOT / "run.py"), *RECIPE, *self.overrides, f"output_dir={self.folder}", *more]
        with self.log.open("a") as log:
            return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def finish(self) -> str:
        """Run the command to its end; what went wrong, or nothing."""
        return ended(self.start(), 0, self)


@dataclass
class Trial:
    attack: str
    lost: str = ""  # why; empty: recovered
    skipped: str = ""


def ended(process: subprocess.Popen[bytes], expected: int, site: Site) -> str:
    try:
        status = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"hangs ({site.log})"
    return "" if status == expected else f"exit status {status} instead of {expected} ({site.log})"


def campaign(site: Site, attacks: list[tuple[str, str]], reference: dict[str, Any], seed: int) -> list[Trial]:
    """Kill the run at each of `attacks`, going on from each; then let it end and compare."""
    chance, killed = random.Random(seed), []
    for phase, kind in attacks:
        landed, trouble = kill_once(site, phase, kind, chance)
        if trouble:
            return [Trial(attack) for attack in killed] + [Trial(f"kill: {phase}", lost=trouble)]
        if landed:
            killed.append(f"kill: {landed}")
    trouble = site.finish() or differences(site.store, reference)
    return [Trial(attack, lost=trouble) for attack in killed]


def kill_once(site: Site, phase: str, kind: str, chance: random.Random) -> tuple[str, str]:
    """(phase in which the kill landed, trouble); no phase where the run ended before it was seen."""
    process = site.start()
    if not await_phase(site, process, phase, kind, chance):
        return "", "" if process.returncode == 0 else f"exit status {process.returncode} ({site.log})"
    family = descendants(process.pid)
    ranks = [pid for pid, parent in family.items() if parent in family]  # forked by the fork server
    if ranks and phase != "publish" and chance.random() < 0.5:
        os.kill(chance.choice(ranks), signal.SIGKILL)
        trouble = ended(process, 1, site)
    else:
        process.kill()
        process.wait()
        trouble = left_behind(family)
    landed, _ = phase_of(site.store)
    return ("weight sync" if (phase, landed) == ("weight sync", "sampling") else landed), trouble


def await_phase(site: Site, process: subprocess.Popen[bytes], phase: str, kind: str, chance: random.Random) -> bool:
    """Wait for the moment; False where the run ended before it came."""
    if phase == "start":
        time.sleep(chance.uniform(0.2, 4.0))
        return process.poll() is None
    before: tuple[str, str] = ("", "")
    while process.poll() is None:
        try:
            now = phase_of(site.store)
        except (FileNotFoundError, NotADirectoryError):  # published while it was looked at
            continue
        # The weights travel between the update that ends a rollout (or the checkpoint after it) and the next rollout.
        crossing = now[0] == "sampling" and before[0] in ("update", "checkpoint write")
        if now[1] == kind and (crossing if phase == "weight sync" else now[0] == phase):
            if phase in ("sampling", "update", "evaluation"):
                time.sleep(chance.uniform(0.0, 0.05))
            return process.poll() is None
        before = now
        time.sleep(0.001)
    return False


# Other disasters


def damage(site: Site, how: str, kind: str, reference: dict[str, Any], seed: int) -> list[Trial]:
    """Kill a run that has two checkpoints, damage the newest one; the one before it must be used, and be told."""
    chance, process = random.Random(seed), site.start()
    pattern = f".partial/{kind}-*/checkpoints/step-*"
    while process.poll() is None and len(list(site.store.glob(pattern))) < 2:
        time.sleep(0.002)
    process.kill()
    process.wait()
    left_behind(descendants(process.pid))
    checkpoints = sorted(site.store.glob(pattern))
    if len(checkpoints) < 2:
        return [Trial(f"checkpoint {how}", skipped="the run was over before it could be killed")]
    file = chance.choice(sorted(path for path in checkpoints[-1].iterdir() if path.stat().st_size))
    content = bytearray(file.read_bytes())
    if how == "truncated":
        del content[chance.randrange(len(content)) :]
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)
    trouble = site.finish() or differences(site.store, reference)
    if not trouble and f"{checkpoints[-1].name} is damaged" not in site.log.read_text():
        trouble = f"the damage to {file.name} went unnoticed"
    return [Trial(f"checkpoint {how}", lost=trouble)]


def full_disk(site: Site, free_kib: int, reference: dict[str, Any]) -> list[Trial]:
    """The run on a file system with so much room; then some is freed."""
    name = "disk full"
    site.folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(site.folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        return [Trial(name, skipped="mounting a tmpfs is not allowed here")]
    try:
        share(site, site.folder.with_name("reference"))
        ballast, room = site.folder / "ballast", shutil.disk_usage(site.folder).free
        ballast.write_bytes(b"\0" * (room - free_kib * 1024))
        trouble = ended(site.start(), 1, site)
        if not trouble and "full" not in site.log.read_text():
            trouble = f"the full disk is not named ({site.log})"
        ballast.unlink()
        return [Trial(name, lost=trouble or site.finish() or differences(site.store, reference))]
    finally:
        subprocess.run(["umount", "--lazy", str(site.folder)], check=False)  # its processes are still ending


def stale_locks(site: Site, reference: dict[str, Any]) -> list[Trial]:
    """Lock files and working folders that name processes long dead must hold nobody up."""
    for entry in reference:
        (site.store / ".locks").mkdir(exist_ok=True)
        (site.store / ".locks" / entry).write_text("process 1 on another-machine")
        (site.store / ".partial" / entry).mkdir(parents=True)
        (site.store / ".partial" / entry / "workers.lock").touch()
    (site.folder / "runs" / ".locks").mkdir(parents=True)
    (site.folder / "runs" / ".locks" / "r1_style-smoke").touch()
    return [Trial("stale locks", lost=site.finish() or differences(site.store, reference))]


def rivals(site: Site, number: int, reference: dict[str, Any]) -> list[Trial]:
    """So many runs at once on one store: each stage is computed once, and all of them end well."""
    processes = [site.start(f"name=rival{index}") for index in range(number)]
    trouble = [found for process in processes if (found := ended(process, 0, site))]
    ran: list[str] = []
    for path in site.folder.glob("runs/rival*/summary.json"):
        ran += [stage["name"] for stage in json.loads(path.read_text())["stages"] if stage["status"] == "ran"]
    if not trouble and len(ran) != len(set(ran)):
        trouble = [f"computed more than once: {sorted(ran)}"]
    lost = "; ".join(trouble) or differences(site.store, reference)
    return [Trial(f"{number} runs at once", lost=lost)]


# The whole


def share(site: Site, reference: Path) -> None:
    """Give a site what all of them have in common, already computed."""
    for entry in (reference / "store").iterdir():
        if entry.name.rpartition("-")[0] in SHARED:
            shutil.copytree(entry, site.store / entry.name)


def kills(make: Callable[[str], Site], number: int, reference: dict[str, Any], seed: int, pool: Any) -> list[Trial]:
    """Campaigns until so many kills have landed; a phase that was missed is tried again in the next ones."""
    trials: list[Trial] = []
    for first in range(0, 40, 2):
        missing = number - len(trials)
        if missing <= 0 or any(trial.lost for trial in trials):
            break
        running = []
        for index in range(first, first + min(2, -(-missing // len(PHASES)))):
            attacks = CAMPAIGNS[index % 2]
            asked = min(len(attacks), missing - (index - first) * len(PHASES))
            chosen = sorted(random.Random(seed + index).sample(range(len(attacks)), asked))
            site = make(f"kills{index}")
            running.append(pool.submit(campaign, site, [attacks[one] for one in chosen], reference, seed + index))
        trials += [trial for future in running for trial in future.result()]
    return trials


def table(trials: list[Trial]) -> str:
    order = [f"kill: {phase}" for phase in PHASES]
    attacks = list(dict.fromkeys([*(one for one in order if any(t.attack == one for t in trials)),
                                  *(trial.attack for trial in trials)]))  # fmt: skip
    rows = [f"{'attack':28} {'tried':>6} {'recovered':>10} {'lost':>6}"]
    for attack in [*attacks, "all"]:
        chosen = [t for t in trials if attack in (t.attack, "all") and not t.skipped]
        lost = sum(bool(trial.lost) for trial in chosen)
        rows.append(f"{attack:28} {len(chosen):>6} {len(chosen) - lost:>10} {lost:>6}")
    notes = [f"{t.attack}: not tried: {t.skipped}" for t in trials if t.skipped]
    return "\n".join([*rows, *notes, *(f"LOST  {t.attack}: {t.lost}" for t in trials if t.lost)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="kill -9 of driver or rank, spread over the phases")
    parser.add_argument("--jobs", type=int, default=2, help="sites at work beside each other")
    parser.add_argument("--rivals", type=int, default=8, help="runs at once on one store (0: leave it out)")
    parser.add_argument("--kills-only", action="store_true", help="leave out damage, full disk and locks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to work, kept; default: a temporary folder, removed")
    flags, overrides = parser.parse_known_args()
    folder = flags.folder or Path(tempfile.mkdtemp(prefix="torture_"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    first = Site(folder.resolve() / "reference", overrides)
    if trouble := first.finish():
        print(f"the undisturbed run {trouble}\n{first.log.read_text()[-2000:]}", file=sys.stderr)
        return 1
    print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
    reference = results(first.store)

    def make(name: str, shared: bool = True) -> Site:
        site = Site(folder.resolve() / name, overrides)
        if shared:
            share(site, first.folder)
        return site

    with ThreadPoolExecutor(max_workers=flags.jobs) as pool:
        trials = kills(make, flags.kills, reference, flags.seed, pool)
        others = []
        if not flags.kills_only:
            for index, (how, kind) in enumerate(itertools.product(("truncated", "bit flipped"), ("sft", "rl"))):
                site = make(f"damage{index}")
                others.append(pool.submit(damage, site, how, kind, reference, flags.seed + index))
            for kib in DISKS_KIB:
                others.append(pool.submit(full_disk, make(f"disk{kib}", shared=False), kib, reference))
            others.append(pool.submit(stale_locks, make("stale"), reference))
        trials += [trial for future in others for trial in future.result()]
    if flags.rivals and not flags.kills_only:
        trials += rivals(make("rivals"), flags.rivals, reference)
    print(f"{table(trials)}\n{time.monotonic() - began:.0f} s")
    lost = any(trial.lost for trial in trials)
    if not flags.folder and not lost:
        shutil.rmtree(folder)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
