"""The report of a sweep: effects that were put in are found, those that were not are not claimed."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path

import pytest

from pipeline.report.sweep import over_pairs, write_sweep_report
from pipeline.report.sweep_load import interaction, load_sweep
from tests.pipeline.browser import assert_drawn, needs_chromium

PROBLEMS = 400


def write_job(folder: Path, right: float, length: float, fingerprint: str, seed: int) -> None:
    noise = random.Random(seed)
    entry, results = folder / "stages" / "general_rl", folder / "stages" / "general_rl.eval" / "results"
    results.mkdir(parents=True)
    entry.mkdir()
    counts = [sum(noise.random() < right for _ in range(8)) for _ in range(PROBLEMS)]
    rows = [{"problem_id": f"p{i}", "suite": "reasoning", "family": "x", "n": 8, "c": c} for i, c in enumerate(counts)]
    (results / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps = [{"step": step, "length/mean": length, "reward/mean": step / 10, "train/kl": 0.1} for step in (1, 2, 3)]
    (entry / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    (entry / "artifact.json").write_text(json.dumps({"seconds": 12.0, "outputs": {}}))
    stages = [
        {"name": "general_rl", "kind": "rl", "fingerprint": fingerprint, "status": "ran", "seconds": 12.0},
        {"name": "general_rl.eval", "kind": "evaluate", "fingerprint": fingerprint, "status": "ran", "seconds": 1.0},
    ]
    (folder / "plan.json").write_text(json.dumps({"stages": stages}))
    (folder / "summary.json").write_text(json.dumps({"name": "s", "status": "done", "seconds": 13.0, "stages": stages}))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """G=8 gains 20 points over G=4 and makes responses 5 tokens longer; beta does nothing; three seeds; one failure."""
    jobs = {}
    for number, (group, beta, seed) in enumerate(itertools.product(("4", "8"), ("0", "0.1"), ("0", "1", "2"))):
        name = f"G={group},beta={beta},seed={seed}"
        right, length = (0.6, 25.0) if group == "8" else (0.4, 20.0)
        write_job(tmp_path / name, right, length + number / 100, str(number), number)
        jobs[name] = {"status": "done", "values": {"G": group, "beta": beta, "seed": seed}}
    jobs["G=1,beta=0,seed=0"] = {"status": "refused", "message": "G: is 1 <b>", "values": {"G": "1"}}
    ledger = {
        "command": "python run.py -m ...",
        "axes": {"G": ["4", "8"], "beta": ["0", "0.1"], "seed": ["0", "1", "2"]},
    }
    (tmp_path / "sweep.json").write_text(json.dumps(ledger | {"jobs": jobs}))
    return tmp_path


def test_pairs_of_the_same_results_count_once(sweep: Path) -> None:
    ledger = json.loads((sweep / "sweep.json").read_text())
    for number, group in ((0, "4"), (6, "8")):  # a later sweep, which left beta and the seed as they are
        write_job(sweep / f"G={group}", 0.5, 20.0, str(number), number)
        ledger["jobs"][f"G={group}"] = {"status": "done", "values": {"G": group}}
    (sweep / "sweep.json").write_text(json.dumps(ledger))
    view = load_sweep(sweep)
    assert len(view.done) == 14 and len(view.pairs("G", "4", "8")) == 6


def row_of(page: str, section: str, start: str) -> str:
    part = page[page.index(f'<section id="{section}">') :]
    row = part[part.index(f">{start}") :]
    return row[: row.index("</tr>")]


def test_effects_that_are_there_are_found(sweep: Path) -> None:
    page = write_sweep_report(sweep).read_text()
    group = row_of(page, "main-effects", "8 − 4")
    cells = [cell.split("</td>")[0] for cell in group.split("<td>")[1:]]
    assert cells[0] == "6"  # pairs
    gain = float(cells[1].split()[0])
    assert 17 < gain < 23 and "[+1" in cells[1]
    assert cells[2].startswith("+5.06")  # length, by a t interval over six pairs
    beta = row_of(page, "main-effects", "0.1 − 0").split("<td>")[2]
    assert "[−" in beta and ", +" in beta  # spans 0
    assert ("can be told apart" in page and "cannot be told apart" in page) or "cannot" in page
    assert "G: is 1 &lt;b&gt;" in page


def test_the_best_two_settings_differ_in_what_does_nothing(sweep: Path) -> None:
    page = write_sweep_report(sweep).read_text()
    told = page[page.index('id="best-and-runner-up"') :].split("</ul>")[0]
    assert told.count("G=8") == 2 and "cannot be told apart" in told


def test_two_axes_that_only_add_up_do_not_interact(sweep: Path) -> None:
    found = interaction(load_sweep(sweep), ("G", "beta"), "general_rl", "reasoning")
    assert found is not None and found.low < 0 < found.high


def test_a_problem_whose_responses_could_not_be_judged_is_left_out(sweep: Path) -> None:
    results = sweep / "G=8,beta=0,seed=0" / "stages" / "general_rl.eval" / "results" / "results.jsonl"
    first, *rows = results.read_text().splitlines(keepends=True)
    results.write_text("".join([json.dumps(json.loads(first) | {"n": 0, "c": 0}) + "\n", *rows]))
    job = next(job for job in load_sweep(sweep).jobs if job.name == "G=8,beta=0,seed=0")
    assert len(job.rates("general_rl", "reasoning")) == PROBLEMS - 1
    assert write_sweep_report(sweep).exists()


def test_an_interval_over_seeds_is_students() -> None:
    found = over_pairs([1.0, 2.0, 3.0])
    assert found is not None and found.mean == 2.0
    assert found.high - found.mean == pytest.approx(4.303 / math.sqrt(3))
    two = over_pairs([1.0, 2.0])
    assert two is not None and two.high == math.inf and over_pairs([]) is None


def test_a_sweep_of_which_nothing_ran_still_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps({"jobs": {"G=1": {"status": "refused", "message": "no"}}}))
    assert "refused" in write_sweep_report(tmp_path).read_text()


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_browser_draws_it(sweep: Path, tmp_path_factory, width: int, scheme: str) -> None:
    assert_drawn(write_sweep_report(sweep).read_text(), tmp_path_factory.mktemp("browser"), width, scheme)
