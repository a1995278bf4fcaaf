"""report.html of a run: one self-contained page, from the files of the run alone.

No script, no font, no picture from elsewhere, and a content policy that says so to the browser: responses of models are
hostile text. Works on whatever is there: a failed or interrupted run shows how far it came and why it stopped.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.report.load import load_run
from pipeline.report.page import page
from pipeline.report.sections import all_sections


def write_report(run_dir: Path) -> Path:
    """Write `<run_dir>/report.html` from summary.json, plan.json and the stages' folders; returns its path."""
    run = load_run(Path(run_dir))
    path = Path(run_dir) / "report.html"
    temporary = path.with_name(".report.html.tmp")
    temporary.write_text(page(run.name, all_sections(run)), encoding="utf-8")
    temporary.replace(path)
    return path


__all__ = ["write_report"]
