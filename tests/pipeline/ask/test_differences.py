"""Two results side by side: where the difference begins, and what is only its consequence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.ask.differences import ABSENT, Comparison, changes, compare, shared_ports, silent_fields
from pipeline.ask.evaluations import comparable, difference, evaluations_of
from pipeline.lineage import Lineage, lineage_of
from tests.pipeline.notes import Notes, chain


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    assert chain(root, "plain").run() == 0
    assert chain(root, "other", last="others").run() == 0
    assert chain(root, "seeded", seed=1).run() == 0
    return root


def known(root: Path, run: str, stage: str) -> Lineage:
    lineage = lineage_of(root / "runs" / run / "stages" / stage / "rows")
    assert lineage is not None
    return lineage


def between(a: Lineage, b: Lineage) -> Comparison:
    return compare(a, b, shared_ports(a, b))


def test_a_result_is_the_same_as_itself(root):
    found = between(known(root, "plain", "last"), known(root, "plain", "last"))
    assert found.same
    assert [(pair.own, pair.ran, pair.through) for pair in found.pairs] == [([], [], [])]


def test_a_change_of_its_own_is_where_it_begins(root):
    found = between(known(root, "plain", "last"), known(root, "other", "last"))
    (pair,) = found.pairs
    assert (pair.same, pair.begins, pair.own) == (False, True, [("text", "last", "others")])


def test_a_change_is_followed_to_where_it_begins(root):
    found = between(known(root, "plain", "last"), known(root, "seeded", "last"))
    told = {pair.a.stage: (pair.begins, pair.own, pair.through) for pair in found.pairs}
    assert list(told) == ["first", "middle", "last"]  # sources first, each once
    assert told == {
        "first": (True, [("seed", 0, 1)], []),
        "middle": (False, [], ["before"]),
        "last": (False, [], ["before", "beside"]),
    }


def test_inputs_of_other_stages_are_rewired_not_compared(root):
    """middle and last are of one kind, and last reads one port more."""
    found = between(known(root, "plain", "middle"), known(root, "plain", "last"))
    (pair,) = found.pairs
    assert ("inputs.before", "first.rows", "middle.rows") in pair.own
    assert ("inputs.beside", ABSENT, "first.rows") in pair.own


def test_stages_of_two_kinds_are_followed_to_their_inputs(root):
    seeded = known(root, "seeded", "middle")
    other = Lineage(seeded.output, seeded.digest, [replace(seeded.own, kind="other"), *seeded.records[1:]])
    found = between(known(root, "plain", "middle"), other)
    assert [(pair.a.stage, pair.begins) for pair in found.pairs] == [("first", True), ("middle", False)]
    assert found.pairs[-1].own == [("made by a stage of kind", "note", "other")]


def test_a_file_counts_by_content(tmp_path):
    for name, words in (("one", "same"), ("two", "same"), ("three", "changed")):
        (tmp_path / f"{name}.txt").write_text(words)
        notes = Notes(tmp_path, name)
        notes.add("first", path=str(tmp_path / f"{name}.txt"))
        assert notes.run() == 0
    one = known(tmp_path, "one", "first")
    two = known(tmp_path, "two", "first")
    assert one.own.config["path"] == two.own.config["path"]  # one result, sealed once
    (pair,) = between(one, known(tmp_path, "three", "first")).pairs
    ((key, before, after),) = pair.own
    assert key == "path" and before.startswith(f"{tmp_path}/one.txt ") and after.startswith(f"{tmp_path}/three.txt ")


def test_fields_that_cannot_change_a_result_are_told_apart():
    silent = silent_fields("rl")
    assert {"num_ranks", "save_every_steps", "tokens_per_microbatch", "gate"} <= set(silent)
    assert "G" not in silent and "algorithm.beta" not in silent
    assert silent_fields("not a kind") == []


def test_changes_of_nested_mappings():
    old = {"a": {"b": 1, "c": [1]}, "d": 2, "e": {}}
    new = {"a": {"b": 1, "c": [2]}, "e": {}, "f": None}
    assert changes(old, new) == [("a.c", [1], [2]), ("d", 2, ABSENT), ("f", ABSENT, None)]


def write_evaluation(store: Path, name: str, digest: str, right: list[int], **config) -> None:
    """Four samples of each problem, of which so many were right."""
    folder = store / f"evaluate-{name}"
    (folder / "results").mkdir(parents=True)
    rows = [{"problem_id": f"p{i}", "suite": "s", "family": "f", "n": 4, "c": c} for i, c in enumerate(right)]
    (folder / "results/results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mean = sum(right) / len(right) / 4
    metrics = {"s/problems": len(right), "s/pass@1": mean, "s/pass@1_low": 0.1, "s/pass@1_high": 0.9, "s/length": 3.0}
    inputs = {"model": {"fingerprint": "m", "digest": digest}, "problems": {"fingerprint": "p", "digest": "problems"}}
    manifest = {"kind": "evaluate", "inputs": inputs, "outputs": {}, "metrics": metrics, "created": name}
    (folder / "artifact.json").write_text(json.dumps(manifest))
    settings = {"kind": "evaluate", "inputs": {}, "num_ranks": None, "samples": 4, **config}
    (folder / "config.yaml").write_text(json.dumps(settings))


def test_accuracies_are_compared_on_the_same_settings_and_paired(tmp_path):
    write_evaluation(tmp_path, "1", "before", [1, 1, 1, 1])
    write_evaluation(tmp_path, "2", "before", [4, 4, 4, 4], samples=8)  # newer, of other settings
    write_evaluation(tmp_path, "3", "after", [2, 2, 2, 2], num_ranks=2)
    before, after = (evaluations_of(digest, tmp_path) for digest in ("before", "after"))
    assert [one.manifest["created"] for one in before] == ["2", "1"]
    chosen = comparable(before, after)
    assert chosen is not None and [one.manifest["created"] for one in chosen] == ["1", "3"]
    assert list(chosen[0].scores()) == ["s/pass@1"]
    assert chosen[0].scores()["s/pass@1"].problems == 4
    gap = difference("s/pass@1", *chosen)
    assert gap is not None
    assert (gap.mean, gap.low, gap.high, gap.problems) == (0.25, 0.25, 0.25, 4)  # 2/4 - 1/4, for every problem
    assert comparable(before[:1], after) == (before[0], after[0])  # of other settings, but all there is
    assert comparable([], after) is None
