"""What people read: progress, time left, and the table at the end."""

from __future__ import annotations

import json
import re

from pipeline.display import Paces, PlainDisplay, accuracies, duration, final_table
from pipeline.summary import StageRecord, read_notes


def record(name: str, status: str, **fields) -> StageRecord:
    return StageRecord(name, "rl", "f", status=status, **fields)


def test_durations():
    assert [duration(seconds) for seconds in (3.21, 245, 7620)] == ["3.2s", "4m05s", "2h07m"]


def test_time_left_counts_from_where_a_stage_resumed(tmp_path):
    """Resumed at step 100 of 200: two steps took 4 s, so the 98 that are left take 196 s, not 8 s."""
    paces, running = Paces(), record("a", "running", folder=tmp_path)
    assert paces.describe(running) == ["", "", ""]
    for step, seconds in ((100, 1.0), (102, 5.0)):
        (tmp_path / "progress.json").write_text(
            json.dumps({"step": step, "total": 200, "seconds": seconds, "reward": 0.5})
        )
        described = paces.describe(running)
    assert described == ["102/200", "reward 0.5", "3m16s"]


def test_plain_lines_also_go_to_the_console(tmp_path, capsys):
    display = PlainDisplay([], tmp_path / "console.log")
    display.say("a: ran")
    display.show("a: a note")
    shown = capsys.readouterr().out.splitlines()
    assert [re.sub(r"^\[[\d:]{8}\] ", "", line) for line in shown] == ["a: ran", "a: a note"]
    assert (tmp_path / "console.log").read_text().splitlines() == shown[:1]


def test_held_out_accuracy_stands_on_the_line_of_the_model():
    metrics = {f"reasoning/pass@1{end}": value for end, value in (("", 0.512), ("_low", 0.48), ("_high", 0.543))}
    metrics |= {f"reasoning/pass@8{end}": value for end, value in (("", 0.801), ("_low", 0.7), ("_high", 0.9))}
    metrics |= {"chain_sum/pass@1": 0.3}
    assert accuracies(metrics) == {"reasoning": {"pass@1 (95% interval)": "51.2 (48.0-54.3)", "pass@8": "80.1"}}
    metrics |= {f"safety/pass@1{end}": 0.0 for end in ("", "_low", "_high")}
    records = [
        record("rl", "ran", seconds=12.0),
        record("rl.eval", "ran", metrics=metrics),
        record("b", "failed", error="why, at whatever length it takes to say so"),
    ]
    assert final_table(records, {"rl.eval": "rl"}).splitlines() == [
        "held-out accuracy in %: pass@1 (95% interval) pass@8",
        "stage  status  time   reasoning              safety",
        "rl     ran     12.0s  51.2 (48.0-54.3) 80.1  0.0 (0.0-0.0)",
        "b      failed         why, at whatever length it takes to say so",
    ]
    assert final_table(records[2:], {}).splitlines()[1].endswith("takes to say so")


def test_a_note_that_is_still_being_written_waits(tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"message": "one"}\n{"message": "tw')
    assert read_notes(tmp_path) == ["one"]
    assert read_notes(tmp_path / "gone") == []
