"""scripts/torture.py: it sees the phases, kills in them, compares, and fails where something is lost."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path

import pytest

from pipeline.forkserver import ROOT
from pipeline.store import write_json
from scripts import torture, watching
from scripts.torture import Site, Trial, campaign, table
from scripts.watching import differences, left_behind, phase_of, results
from tests.pipeline.build_plan import command

STEPS = {"name": "a", "steps": 30, "step_seconds": 0.05}


class Counting(Site):
    """A stage that counts, in place of the recipe."""

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        with self.log.open("a") as log:
            return subprocess.Popen(command(self.folder, "local", [STEPS]), cwd=ROOT, stdout=log, stderr=log)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict:
    site = Counting(tmp_path_factory.mktemp("reference") / "site", [])
    assert site.finish() == ""
    return results(site.store)


def partial(store: Path, kind: str, **files: str) -> Path:
    folder = store / ".partial" / f"{kind}-0123"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text("{}")
    (folder / "workers.lock").touch()
    for name, text in files.items():
        (folder / f"{name}.jsonl").write_text(text)
    return folder


def test_the_phase_of_a_rollout_and_its_updates(tmp_path: Path) -> None:
    folder = partial(tmp_path, "rl")
    for updates, rollouts, phase in ((0, 0, "start"), (0, 1, "update"), (1, 1, "update"), (2, 1, "sampling")):
        (folder / "metrics.jsonl").write_text('{"step": 1}\n' * updates)
        (folder / "samples.jsonl").write_text("".join(f'{{"step": {2 * n}}}\n' * 4 for n in range(rollouts)))
        assert phase_of(tmp_path) == (phase, "rl")
    (folder / "checkpoints" / ".draft-00000002").mkdir(parents=True)
    assert phase_of(tmp_path) == ("checkpoint write", "rl")
    (folder / "result.json").touch()
    assert phase_of(tmp_path) == ("publish", "rl")


def test_records_of_an_earlier_attempt_are_not_taken_for_this_one(tmp_path: Path) -> None:
    assert phase_of(tmp_path) == ("start", "")
    folder = partial(tmp_path, "sft", metrics='{"step": 1}\n', notes="{}\n")
    (folder / "checkpoints" / "step-00000001").mkdir(parents=True)
    os.utime(folder / "notes.jsonl", (1, 1))
    assert phase_of(tmp_path) == ("start", "sft")
    (folder / "progress.json").touch()
    assert phase_of(tmp_path) == ("update", "sft")


def test_what_is_compared(tmp_path: Path) -> None:
    manifest = {"outputs": {"model": {"digest": "d1"}}, "metrics": {"train/loss": 1.0, "time/seconds": 3.0}}
    write_json_entry(tmp_path, manifest, '{"step": 1, "train/loss": 2.0, "time/step_seconds": 0.1}\n')
    want = results(tmp_path)
    write_json_entry(tmp_path, manifest | {"metrics": {"train/loss": 1.0, "time/seconds": 9.0}})
    assert differences(tmp_path, want) == ""
    write_json_entry(tmp_path, manifest, '{"step": 1, "train/loss": 2.5}\n')
    assert differences(tmp_path, want) == "sft-0123: lines"
    write_json_entry(tmp_path, copy.deepcopy(manifest) | {"outputs": {"model": {"digest": "d2"}}})
    assert differences(tmp_path, want) == "sft-0123: digests, lines"
    (tmp_path / "sft-0123" / "artifact.json").unlink()
    assert differences(tmp_path, want) == "sft-0123: is missing"


def write_json_entry(store: Path, manifest: dict, lines: str | None = None) -> None:
    (store / "sft-0123").mkdir(exist_ok=True)
    write_json(store / "sft-0123" / "artifact.json", manifest)
    if lines is not None:
        (store / "sft-0123" / "metrics.jsonl").write_text(lines)


def test_a_killed_run_goes_on_and_a_loss_is_seen(tmp_path: Path, reference: dict) -> None:
    trials = campaign(Counting(tmp_path / "one", []), [("update", "count")], reference, seed=0)
    assert [(trial.attack, trial.lost) for trial in trials] == [("kill: update", "")]
    wrong = json.loads(json.dumps(reference).replace('"count/value": 30', '"count/value": 31'))
    trials = campaign(Counting(tmp_path / "two", []), [("update", "count")], wrong, seed=1)
    assert trials[0].lost.startswith("count-") and "metrics" in trials[0].lost


def test_a_phase_that_never_comes_is_not_counted(tmp_path: Path, reference: dict) -> None:
    assert campaign(Counting(tmp_path / "site", []), [("evaluation", "evaluate")], reference, seed=0) == []


def test_a_process_left_behind_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PATIENCE_AFTER_DEATH", 0.2)
    with subprocess.Popen(["sleep", "60"]) as child:
        assert left_behind({child.pid: 1}) == f"processes left behind: [{child.pid}]"
        child.kill()
    assert left_behind({child.pid: 1}) == ""


def test_the_table_counts_and_names_what_is_lost() -> None:
    trials = [Trial("kill: update"), Trial("kill: start", lost="sft-1: digests"), Trial("disk full", skipped="no root")]
    rows = table(trials).splitlines()
    assert [row.split()[-3:] for row in rows[1:3]] == [["1", "0", "1"], ["1", "1", "0"]]
    assert "disk full: not tried: no root" in rows and "LOST  kill: start: sft-1: digests" in rows


def test_every_phase_is_attacked_in_every_two_campaigns() -> None:
    assert {phase for attacks in torture.CAMPAIGNS for phase, _ in attacks} == set(torture.PHASES)
