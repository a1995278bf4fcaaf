"""Files of other people's schemas, splits without leaks, and every fault of a source found before it is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.artifacts import StageFailed
from stages.parts.data import checks
from stages.parts.data.checks import has_demonstrations
from stages.parts.data.config import VERIFIERS, DataConfig
from stages.parts.data.problems import load_problems, save_problems
from stages.parts.data.sources import build_suite, read_rows
from stages.parts.data.splits import check_disjoint, identities, split_of
from stages.parts.rollouts.types import Problem
from stages.parts.verifiers import table
from stages.parts.verifiers.config import RewardConfig
from stages.parts.verifiers.reward import score_response

GSM8K = "tests/data/gsm8k_sample.jsonl"


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_gsm8k_needs_no_mapping_and_its_solutions_are_demonstrations():
    suite = build_suite("reasoning", DataConfig(source="jsonl", path=GSM8K, instruction="Box the answer."))
    assert {split: len(rows) for split, rows in suite.splits.items()} == {"train": 15, "dev": 2, "test": 7}
    assert len(suite.demonstrations) == 15  # of training problems alone
    check_disjoint(suite.splits)
    by_id = {problem.id: problem for problem in suite.splits["train"]}
    for row in suite.demonstrations:
        problem, reply = by_id[row["problem_id"]], row["messages"][-1]["content"]
        assert "<<" not in reply and "####" not in reply
        assert row["messages"][0]["content"].endswith("\nBox the answer.")
        assert score_response(problem, reply, False, RewardConfig(format=1.0)).value == 2.0


def test_other_schemas(tmp_path):
    rows = [
        {"problem": "What is 1+1?", "solution": "We add: \\boxed{2}", "level": "Level 1"},
        {"problem": "What is 2+2?", "solution": "So \\boxed{4}", "level": "Level 1"},
        {"problem": "What is 3+3?", "solution": "no box", "level": "Level 1"},
    ]
    read = read_rows(DataConfig(source="jsonl", path=write(tmp_path / "math.jsonl", rows)))
    assert [(row.answer, row.reply is not None) for row in read] == [("2", True), ("4", True)]

    rows = [
        {"chat": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
        {"chat": [{"role": "user", "content": "Name a fish"}], "gold": "eel"},
    ]
    cfg = DataConfig(
        source="jsonl", path=write(tmp_path / "c.jsonl", rows), columns={"messages": "chat", "answer": "gold"}
    )
    assert [fault.key for fault in cfg.faults()] == ["path"]  # its columns are found; two rows are no three splits
    demonstration, problem = read_rows(cfg)
    assert (demonstration.reply, demonstration.answer) == ("Hello", None)
    assert (problem.reply, problem.answer) == (None, "eel")


def test_hub_rows_go_through_the_same_mapping(tmp_path):
    """A local folder stands for a hub data set: the same loader and the same columns."""
    (tmp_path / "train.jsonl").write_text(Path(GSM8K).read_text())
    cfg = DataConfig(source="hub", name=str(tmp_path))
    assert read_rows(cfg) == read_rows(DataConfig(source="jsonl", path=GSM8K))


def test_parquet(tmp_path):
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    rows = [json.loads(line) for line in Path(GSM8K).read_text().splitlines()]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    cfg = DataConfig(source="jsonl", path=str(tmp_path / "rows.parquet"))
    assert not cfg.faults()
    assert read_rows(cfg) == read_rows(DataConfig(source="jsonl", path=GSM8K))


def test_a_question_that_comes_twice_stays_on_one_side(tmp_path):
    rows = [{"question": f"What is {n}+1?", "answer": str(n + 1)} for n in range(40)] * 2
    suite = build_suite("reasoning", DataConfig(source="jsonl", path=write(tmp_path / "twice.jsonl", rows)))
    check_disjoint(suite.splits)
    assert sum(len(problems) for problems in suite.splits.values()) == 40


def test_too_few_rows(tmp_path):
    rows = [{"question": "a?", "answer": "1"}, {"question": "A? ", "answer": "1"}, {"question": "b?", "answer": "1"}]
    with pytest.raises(StageFailed, match="2 distinct questions"):
        build_suite("reasoning", DataConfig(source="jsonl", path=write(tmp_path / "few.jsonl", rows)))


@pytest.mark.parametrize(
    ("fields", "key", "says"),
    [
        ({"source": "nowhere"}, "source", "unknown"),
        ({"source": "jsonl"}, "path", "missing"),
        ({"source": "jsonl", "path": "no/such.jsonl"}, "path", "cannot be read"),
        ({"source": "jsonl", "path": "tests"}, "path", "cannot be read"),
        ({"source": "jsonl", "path": "pyproject.toml"}, "path", "line 1 is not JSON"),
        ({"source": "jsonl", "path": GSM8K, "columns": {"prompt": "q"}}, "columns", "no column 'q'"),
        ({"source": "jsonl", "path": GSM8K, "columns": {"prmpt": "question"}}, "columns", "maps prmpt"),
        ({"source": "jsonl", "path": GSM8K, "verifier": "eyes"}, "verifier", "unknown"),
        ({"source": "hub"}, "name", "missing"),
        ({"source": "reasoning_gym", "families": ["spell_backward"]}, "families", "names spell_backward"),
        ({"source": "general", "difficulty": 0}, "difficulty", "is 0"),
    ],
)
def test_faults(fields, key, says):
    faults = DataConfig(**fields).faults()
    assert [fault.key for fault in faults] == [key]
    assert says in faults[0].problem


def test_a_file_without_questions(tmp_path):
    cfg = DataConfig(source="jsonl", path=write(tmp_path / "x.jsonl", [{"text": "a", "kind": "b"}]))
    assert "no column that is known as the prompt" in cfg.faults()[0].problem


def test_leaks_are_found():
    def problem(name, question, key=None):
        metadata = {} if key is None else {"key": key}
        return Problem(name, "s", "f", [{"role": "user", "content": question}], "1", metadata=metadata)

    with pytest.raises(StageFailed, match="held-out data leaks"):
        check_disjoint({"train": [problem("a", "What is  2+2?")], "test": [problem("b", "what is 2+2")]})
    with pytest.raises(StageFailed, match="held-out data leaks"):
        check_disjoint({"train": [problem("a", "2+2=?", "k")], "dev": [problem("b", "Compute 2+2", "k")]})
    with pytest.raises(StageFailed, match="the id a"):
        check_disjoint({"train": [problem("a", "x"), problem("a", "y")]})


def test_split_shares():
    splits = [split_of(f"k{number}", 0) for number in range(5000)]
    assert 0.18 < splits.count("test") / 5000 < 0.22
    assert 0.08 < splits.count("dev") / 5000 < 0.12
    assert splits != [split_of(f"k{number}", 1) for number in range(5000)]


def test_round_trip_and_load_dataset(tmp_path):
    import datasets

    cfg = DataConfig(source="reasoning_gym", train_problems=20, dev_problems=5, test_problems=5)
    suite = build_suite("reasoning", cfg)
    save_problems(tmp_path / "problems", suite.splits)
    assert load_problems(tmp_path / "problems", "train") == suite.splits["train"]
    assert load_problems(tmp_path / "problems", "train", ["general"]) == []
    table = datasets.load_dataset(str(tmp_path / "problems"), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in table.items()} == {"train": 20, "validation": 5, "test": 5} or {
        split: len(rows) for split, rows in table.items()
    } == {"train": 20, "dev": 5, "test": 5}


def test_verifiers_of_the_head_are_those_of_the_table():
    assert set(VERIFIERS) == set(table.VERIFIERS)


def test_identities_know_the_problem_behind_the_wording():
    suite = build_suite("general", DataConfig(source="general", train_problems=4, dev_problems=1, test_problems=1))
    problem = suite.splits["train"][0]
    assert problem.metadata["key"] in identities(problem) and len(identities(problem)) == 2


def test_a_file_that_cannot_be_split_is_refused_while_planning(tmp_path):
    turns = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "\\boxed{4}"}]
    path = write(tmp_path / "rows.jsonl", [{"messages": turns, "number": number} for number in range(5)])
    (fault,) = DataConfig(source="jsonl", path=path).faults()
    assert (fault.key, "0 distinct questions" in fault.problem) == ("path", True)


def test_demonstrations_may_come_late_in_a_file(tmp_path):
    rows = [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(30)]
    late = {"question": "5+5?", "answer": "10", "solution": "5 and 5 make 10"}
    for extra, shown in (([], False), ([late], True)):
        path = write(tmp_path / "rows.jsonl", [*rows, *extra])
        assert has_demonstrations(DataConfig(source="jsonl", path=path)) is shown


def test_a_name_that_is_none_of_the_hub():
    assert [fault.key for fault in DataConfig(source="hub", name="gsm8k").faults()] == ["name"]
    assert DataConfig(source="hub", name="openai/gsm8k").faults() == []


GOOD = [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(30)]


@pytest.mark.parametrize(
    ("broken", "key", "says"),
    [
        ('{"question": "a?", "answer"', "path", "line 31 is not JSON"),
        ("[1, 2]", "path", "line 31 is not a JSON object"),
        ('{"messages": ["hello"]}', "columns", "line 31 has a conversation that is no list of turns"),
        ('{"messages": [{"role": "user", "content": null}]}', "columns", "line 31 has a turn whose role or content"),
        ('{"question": "a?", "answer": "\\ud83d"}', "path", "line 31 has half of a character"),
        ('{"question": "a?", "answer": "1", "verifier": "eyes"}', "columns", "line 31 names the verifier 'eyes'"),
    ],
)
def test_a_broken_row_far_down_is_named_with_file_and_line(tmp_path, monkeypatch, broken, key, says):
    """While planning where the file is small, else by the stage that reads it."""
    path = write(tmp_path / "rows.jsonl", GOOD)
    with Path(path).open("a") as file:
        file.write(broken + "\n")
    cfg = DataConfig(source="jsonl", path=path)
    (fault,) = cfg.faults()
    assert fault.key == key and path in fault.problem and says in fault.problem and "mend" in fault.remedy
    monkeypatch.setattr(checks, "SMALL_FILE", 100)
    assert cfg.faults() == [] and has_demonstrations(cfg)
    with pytest.raises(StageFailed, match=rf"rows\.jsonl, {says}.*; mend that row, or take it out"):
        read_rows(cfg)


def test_questions_that_differ_in_blanks_alone_are_one(tmp_path):
    rows = [{"question": question, "answer": "2"} for question in ("1+1?", "1+1 ?", " 1+1", "2+0")]
    (fault,) = DataConfig(source="jsonl", path=write(tmp_path / "rows.jsonl", rows)).faults()
    assert "holds 3 distinct questions" not in fault.problem and "distinct questions with an answer" in fault.problem


def test_negative_counts_and_seeds(tmp_path):
    cfg = DataConfig(source="general", demonstrations=-5, seed=-1)
    assert [(fault.key, fault.remedy) for fault in cfg.faults()] == [
        ("demonstrations", "write 0 or more"),
        ("seed", "write 0 or more"),
    ]


def test_a_mapped_column_that_no_row_has_fails_with_the_columns_there_are(tmp_path):
    (tmp_path / "train.jsonl").write_text(Path(GSM8K).read_text())
    cfg = DataConfig(source="hub", name=str(tmp_path), columns={"prompt": "q"})
    with pytest.raises(StageFailed, match=r"has no column 'q'; data\.columns can map answer, question"):
        read_rows(cfg)
