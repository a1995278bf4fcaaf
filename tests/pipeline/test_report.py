"""The report of a run: complete, self-contained, safe with hostile responses, and drawn by a real browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipeline.report import write_report
from pipeline.report.charts import MOST_POINTS, Series, line_chart, nice_ticks, smoothed
from pipeline.report.page import block, duration, number, signed, text
from tests.pipeline.browser import assert_drawn, needs_chromium
from tests.pipeline.example_run import CHAIN, HOSTILE, write_example_run

VOID = {"meta", "wbr", "br", "img", "link", "input", "hr"}
SECTIONS = [
    "The chain",
    "Capability",
    "Emergence",
    "Can it be believed?",
    "Length of right and wrong responses",
    "Curves",
    "Behaviour",
    "Rejection sampling",
    "The same problems, model by model",
    "Responses seen in training",
    "Lineage",
]


class Reader(HTMLParser):
    """Checks that every element is closed, and collects what the tests ask for."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    return write_example_run(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def source(run_dir) -> str:
    return write_report(run_dir).read_text()


def test_every_section_and_stage_is_there(source):
    reader = Reader(source)
    assert reader.headings == SECTIONS
    for name, *_ in CHAIN:
        assert name in reader.text
    assert "python run.py pipeline=r1_style seed=1" in reader.text
    assert "epsilon does nothing in general_rl" in reader.text


def test_nothing_comes_from_elsewhere_and_responses_stay_text(source):
    reader = Reader(source)
    assert not {"script", "img", "link", "iframe", "object", "form", "a"} & {tag for tag, _ in reader.seen}
    for _, attributes in reader.seen:
        assert not {key for key in attributes if key.startswith("on") or key in ("src", "href", "xlink:href")}
    style = source[source.index("<style>") : source.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert '<script>alert(1)</script><img src="https://example.com/x.png"' in reader.text  # shown, as text
    assert "\x00" not in source
    assert "\u202e" not in source  # would turn what follows around
    assert "\\u202eabc \\ud800 &amp;" in reader.text


def test_differences_are_paired_and_against_the_input_model(run_dir, source):
    """By hand: the mean over problems of the difference of the rates is the difference of the two accuracies."""

    def rates(stage: str) -> dict[str, float]:
        path = run_dir / "stages" / f"{stage}.eval" / "results" / "results.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return {row["problem_id"]: row["c"] / row["n"] for row in rows if row["suite"] == "reasoning"}

    for stage, before in (("reasoning_rl", "cold_start"), ("rejection_sft", "base"), ("distillation", "student_base")):
        gain = sum(rates(stage).values()) / 200 - sum(rates(before).values()) / 200
        found = re.search(
            rf">([+−][\d.]+)</span> <small>[^<]*</small> <small>from {before}</small>",
            source.replace("<wbr>", "").split(f">{stage}<small>")[1],
        )
        assert found is not None
        shown = float(found.group(1).replace("−", "-"))
        assert shown == pytest.approx(100 * gain, abs=0.051)  # one decimal
    assert "from distillation_control" in source


def test_a_failed_run_says_where_and_why(tmp_path):
    reader = Reader(write_report(write_example_run(tmp_path, problems=20, fail_at="reasoning_rl")).read_text())
    assert "non-finite loss at step 12 <b>of 80</b>" in reader.text
    assert "Capability" in reader.headings  # of what was evaluated before
    assert "Rejection sampling" not in reader.headings


def test_a_run_that_has_barely_begun(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"name": "a", "pipeline": "b", "status": "running"}))
    assert Reader(write_report(tmp_path).read_text()).headings == []


def test_the_report_imports_no_torch():
    code = "import sys, pipeline.report; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'wandb')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


def test_text_and_numbers():
    assert text("a<b>&\"'\x1b") == "a&lt;b&gt;&amp;&quot;&#x27;\\x1b"
    assert "more characters" in block("x" * 5000)
    assert "<script" not in block(HOSTILE)
    assert [duration(s) for s in (0.04, 9.94, 59.4, 61, 3725)] == ["0.0 s", "9.9 s", "59 s", "1 min 01 s", "1 h 02 min"]
    assert [number(v) for v in (None, 3.0, 0.12345, 12345.6, 1e-5)] == ["–", "3", "0.1235", "12,346", "1.00e-05"]
    assert [signed(v) for v in (0.1234, -0.02, -0.00001)] == ["+12.3", "−2.0", "+0.0"]


def test_ticks_are_round_and_enclose_the_data():
    assert nice_ticks(0.37, 0.61) == [0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65]
    assert nice_ticks(5, 5)[0] < 5 < nice_ticks(5, 5)[-1]
    assert nice_ticks(0, 0)[0] == 0 < nice_ticks(0, 0)[-1]


def test_a_moving_mean_keeps_a_straight_line_straight():
    line = [(float(x), 2.0 * x) for x in range(100)]
    means = smoothed(line)
    assert means is not None
    assert [y for _, y in means] == pytest.approx([y for _, y in line])


def test_long_series_are_thinned_and_odd_ones_survive():
    long = line_chart("a", [Series("b", [(float(x), 1.0) for x in range(10_000)])])
    assert long.count("L") <= 2 * MOST_POINTS
    assert "<circle" in line_chart("a", [Series("b", [(1.0, float(10**9))])])
    assert line_chart("a", [Series("b", [])]) == ""


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_browser_draws_it(source, tmp_path, width, scheme):
    assert_drawn(source, tmp_path, width, scheme)
