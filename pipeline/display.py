"""What people see while a run goes on: a live table on a terminal, plain lines elsewhere, and a table at the end.

Everything said also goes to the run's console.log. The display only reads: a running stage's `progress.json`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pipeline.summary import StageRecord

PLAIN_EVERY_SECONDS = 10.0


class Display(Protocol):
    def show(self, line: str) -> None:
        """A line on the screen that stays."""

    def say(self, line: str) -> None:
        """The same, and in console.log."""

    def refresh(self) -> None:
        """Show the present state; cheap, called several times a second."""

    def close(self) -> None: ...


def make_display(records: list[StageRecord], console: Path) -> Display:
    return LiveDisplay(records, console) if sys.stdout.isatty() else PlainDisplay(records, console)


@dataclass
class Pace:
    """Time left, from the steps seen since this stage (re)started: a resumed one does not begin at step 0."""

    step: int
    seconds: float

    def left(self, progress: dict[str, Any]) -> float | None:
        done, took = progress["step"] - self.step, progress["seconds"] - self.seconds
        return (progress["total"] - progress["step"]) * took / done if done > 0 else None


@dataclass
class Paces:
    first: dict[str, Pace] = field(default_factory=dict)

    def describe(self, record: StageRecord) -> list[str]:
        """[step, values, time left] of a running stage."""
        progress = read_progress(record.folder)
        if progress is None:
            return ["", "", ""]
        pace = self.first.setdefault(record.name, Pace(progress["step"], progress["seconds"]))
        left = pace.left(progress)
        shown = {key: value for key, value in progress.items() if key not in ("step", "total", "seconds")}
        values = "  ".join(f"{key} {number(value)}" for key, value in shown.items())
        return [f"{progress['step']}/{progress['total']}", values, "" if left is None else duration(left)]


class PlainDisplay:
    """A line at the start and the end of each stage (the runner says them), and one every ten seconds."""

    def __init__(self, records: list[StageRecord], console: Path) -> None:
        self.records, self.console = records, console
        self.paces, self.last = Paces(), time.monotonic()

    def show(self, line: str) -> None:
        print(stamped(line), flush=True)

    def say(self, line: str) -> None:
        self.show(line)
        append(self.console, stamped(line))

    def refresh(self) -> None:
        if time.monotonic() - self.last < PLAIN_EVERY_SECONDS:
            return
        self.last = time.monotonic()
        for record in self.records:
            if record.status == "running":
                step, values, left = self.paces.describe(record)
                if step:
                    self.say(f"{record.name}: step {step}  {values}" + (f"  {left} left" if left else ""))

    def close(self) -> None:
        pass


class LiveDisplay:
    """A table of all stages that is drawn again in place."""

    def __init__(self, records: list[StageRecord], console: Path) -> None:
        from rich.live import Live  # only where there is a terminal

        self.records, self.console, self.paces = records, console, Paces()
        self.live = Live(get_renderable=self._table, refresh_per_second=4, transient=True)
        self.live.start()

    def show(self, line: str) -> None:
        self.live.console.print(stamped(line), markup=False, highlight=False)

    def say(self, line: str) -> None:
        self.show(line)
        append(self.console, stamped(line))

    def refresh(self) -> None:
        pass  # rich redraws from a thread of its own

    def close(self) -> None:
        self.live.stop()

    def _table(self) -> Any:
        from rich.table import Table

        table = Table("stage", "status", "step", "now", "left", box=None, pad_edge=False)
        styles = {"running": "bold cyan", "failed": "bold red", "waiting": "dim", "skipped": "dim", "locked": "yellow"}
        for record in self.records:
            step, values, left = self.paces.describe(record) if record.status == "running" else ["", "", ""]
            if record.finished:
                values = duration(record.seconds) if record.status != "cached" else ""
            table.add_row(record.name, record.status, step, values, left, style=styles.get(record.status, ""))
        return table


def read_progress(folder: Path | None) -> dict[str, Any] | None:
    """None before the first step, and when the stage is just being sealed and moved."""
    try:
        return json.loads((folder / "progress.json").read_text()) if folder is not None else None
    except FileNotFoundError:
        return None


def stamped(line: str) -> str:
    return f"[{time.strftime('%H:%M:%S')}] {line}"


def append(console: Path, text: str) -> None:
    with console.open("a") as file:
        file.write(text + "\n")


def number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"


def duration(seconds: float) -> str:
    """12.3s, 4m05s, 2h07m."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def final_table(records: list[StageRecord], evaluated: dict[str, str]) -> str:
    """Stage, status as in summary.json, seconds, and what matters: held-out accuracy from its `.eval`, or the error.

    `evaluated`: name of a `.eval` stage -> the stage it evaluates; it is shown on that stage's line.
    """
    scores = {evaluated[record.name]: accuracies(record.metrics) for record in records if record.name in evaluated}
    suites = list(dict.fromkeys(suite for found in scores.values() for suite in found))
    measured = dict.fromkeys(name for found in scores.values() for cells in found.values() for name in cells)
    rows = [["stage", "status", "time", *suites]]
    for record in records:
        if record.name in evaluated and record.finished:
            continue
        seconds = duration(record.seconds) if record.finished and record.status != "cached" else ""
        found = scores.get(record.name, {})
        cells = [" ".join(found.get(suite, {}).values()) for suite in suites]
        rows.append([record.name, record.shown, seconds, *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    errors = {record.name: record.error for record in records}
    lines = []
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        error = errors.get(row[0])
        lines.append("  ".join([*padded[:3], error] if error else padded).rstrip())
    return "\n".join([f"held-out accuracy in %: {' '.join(measured)}"] * bool(suites) + lines)


def accuracies(metrics: dict[str, Any]) -> dict[str, dict[str, str]]:
    """{"reasoning": {"pass@1 (95% interval)": "51.2 (48.0-54.3)", "pass@8": "80.1"}}: keys as the evaluate stage names
    them, in percent."""
    suites: dict[str, dict[str, str]] = {}
    for key, value in metrics.items():
        suite, _, name = key.rpartition("/")
        low, high = metrics.get(f"{key}_low"), metrics.get(f"{key}_high")
        if value is None or low is None or high is None:  # suites have intervals, families do not
            continue
        if name == "pass@1":
            interval = f"({100 * low:.1f}-{100 * high:.1f})"
            suites.setdefault(suite, {})[f"{name} (95% interval)"] = f"{100 * value:.1f} {interval}"
        elif name.startswith("pass@"):
            suites.setdefault(suite, {})[name] = f"{100 * value:.1f}"
    return suites
