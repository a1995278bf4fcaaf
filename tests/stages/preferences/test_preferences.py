"""The stage `preferences`: pairs by rules for the open problems of a set, or from somebody's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context
from stages.parts.data.config import DataConfig
from stages.parts.data.pairs import Pair, load_pairs
from stages.parts.data.problems import SPLITS, load_problems, save_problems
from stages.parts.data.sources import build_suite
from stages.parts.data.splits import normalise
from stages.preferences.config import PreferencesConfig, outline
from stages.preferences.run import check_disjoint, run

SIZES = {"train_problems": 60, "dev_problems": 12, "test_problems": 20, "demonstrations": 4}
FACTS = {
    "suites": {suite: {"train": 60, "dev": 12, "test": 20} for suite in ("reasoning", "helpful", "safety")},
    "scored_by": {"helpful": ["helpfulness"], "safety": ["accuracy", "harmlessness"]},
}


def config(**settings) -> PreferencesConfig:
    return PreferencesConfig(seed=0, **settings)


def context_in(folder: Path) -> Context:
    folder.mkdir(exist_ok=True)
    return Context(stage="preferences", workdir=folder, seed=0)


@pytest.fixture(scope="module")
def problems(tmp_path_factory) -> Artifact:
    folder = tmp_path_factory.mktemp("problems")
    suites = [build_suite(name, DataConfig(source=name, **SIZES)) for name in ("helpful", "safety")]
    save_problems(folder, {split: [row for suite in suites for row in suite.splits[split]] for split in SPLITS})
    return Artifact("problems", "dataset:problems", folder, {}, "", "")


def prompts(pairs: list[Pair]) -> set[str]:
    return {normalise(pair.messages[-1]["content"]) for pair in pairs}


def test_embedded_pairs_stay_in_the_splits_of_their_problems(problems, tmp_path):
    context = context_in(tmp_path)
    metrics = run(config(), {"problems": problems}, context)
    for split in SPLITS:
        known = {problem.id for problem in load_problems(problems.path, split)}
        pairs = load_pairs(tmp_path / "preferences", split)
        assert pairs and {pair.problem_id for pair in pairs} <= known
        assert {pair.axis for pair in pairs} == {"helpfulness", "harmlessness"}
        assert metrics[f"pairs/{split}"] == len(pairs) == context.facts["preferences"]["pairs"][split]
    assert metrics["pairs/helpfulness/repetitive"] > 0
    told = outline(config(), {"problems": FACTS})
    assert told.faults == [] and told.outputs["preferences"]["pairs"]["train"] == 240  # 120 problems, two pairs each
    run(config(), {"problems": problems}, context_in(tmp_path / "again"))
    for split in SPLITS:
        files = [folder / "preferences" / f"{split}.jsonl" for folder in (tmp_path, tmp_path / "again")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_limit_cuts_all_suites_alike(problems, tmp_path):
    run(config(train_pairs=40), {"problems": problems}, context_in(tmp_path))
    axes = [pair.axis for pair in load_pairs(tmp_path / "preferences", "train")]
    assert len(axes) == 40 and 15 <= axes.count("harmlessness") <= 25


ROWS = [{"prompt": f"question {n}?", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(30)]


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_own_pairs(tmp_path):
    again = {"prompt": " Question 0 ", "chosen": "better 0", "rejected": "worse 0", "axis": "harmlessness"}
    useless = [{"prompt": "same?", "chosen": "a", "rejected": "a"}, {"prompt": "empty?", "chosen": "", "rejected": "b"}]
    cfg = config(source="jsonl", path=write(tmp_path / "pairs.jsonl", [*ROWS, again, *useless]))
    assert cfg.faults() == []
    run(cfg, {}, context_in(tmp_path / "out"))
    splits = {split: load_pairs(tmp_path / "out" / "preferences", split) for split in SPLITS}
    assert sum(map(len, splits.values())) == 31 and all(splits.values())
    found = [prompts(pairs) for pairs in splits.values()]
    assert not found[0] & found[1] and not found[0] & found[2] and not found[1] & found[2]
    [own] = [pair for pairs in splits.values() for pair in pairs if pair.axis == "harmlessness"]
    assert (own.chosen, own.rejected) == ("better 0", "worse 0")
    assert "33 rows, 31 of them pairs, 30 distinct prompts" in (tmp_path / "out" / "notes.jsonl").read_text()


def test_conversations_as_other_data_sets_have_them(tmp_path):
    def chat(question: str, reply: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]

    rows = [{"preferred": chat(f"q{n}", "yes"), "worse": chat(f"q{n}", "no"), "aspect": "tone"} for n in range(9)]
    cfg = config(source="jsonl", path=write(tmp_path / "chats.jsonl", rows))
    assert cfg.faults() == []
    run(cfg, {}, context_in(tmp_path / "out"))
    pair = load_pairs(tmp_path / "out" / "preferences", "train")[0]
    assert pair.messages[0]["content"].startswith("q") and (pair.chosen, pair.rejected, pair.axis) == (
        "yes", "no", "tone",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "settings", "key", "told"),
    [
        (None, {}, "path", "cannot be read"),
        ([], {}, "columns", "no column"),
        ([{"prompt": "a", "chosen": "b"}], {}, "columns", "known as rejected"),
        (ROWS, {"columns": {"chosen": "best"}}, "columns", "there is no column 'best'"),
        (ROWS, {"columns": {"winner": "chosen"}}, "columns", "maps winner"),
        (ROWS[:2], {}, "path", "2 distinct prompts"),
        ([{"prompt": 3, "chosen": "b", "rejected": "c"}] * 3, {}, "columns", "not as its columns say"),
        (ROWS, {"train_pairs": 0}, "train_pairs", "is 0"),
    ],
)
def test_faults_of_a_file_are_found_before_it_runs(tmp_path, rows, settings, key, told):
    path = tmp_path / "pairs.jsonl"
    if rows is not None:
        write(path, rows)
    [fault] = config(source="jsonl", path=str(path), **settings).faults()
    assert fault.key == key and told in fault.problem and fault.remedy


def test_faults_of_the_embedded_source():
    assert [fault.key for fault in outline(config(), {}).faults] == ["inputs.problems"]
    bare = {"suites": {"reasoning": {"train": 1, "dev": 1, "test": 1}}}
    told = outline(config(suites=["helpful", "reasoning"]), {"problems": bare}).faults
    assert ["+suite@stages.problems.helpful=helpful" in fault.remedy for fault in told] == [True, False]
    assert [fault.key for fault in config(path="x.jsonl").faults()] == ["path"]
    assert [fault.key for fault in config(source="hub").faults()] == ["source"]


def test_a_leak_fails():
    pair = Pair("p", [{"role": "user", "content": "one?"}], "a", "b")
    with pytest.raises(StageFailed, match="leaks"):
        check_disjoint({"train": [pair], "test": [pair]})
