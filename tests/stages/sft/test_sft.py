"""The sft stage on a real tiny model: what it learns, what it writes, and that nothing is lost when it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from pipeline.artifacts import Interrupted, StageFailed
from pipeline.tracking import Context
from stages.parts.data.conversations import save_conversations
from stages.parts.policy.model import load_policy
from stages.sft.config import SFTConfig, outline
from stages.sft.run import run
from tests.stages.sft.stage import STEPS, config, make_inputs, run_stage

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Bit-identical means the same number of threads as the processes that are killed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("inputs")
    make_inputs(root)
    return root


@pytest.fixture(scope="module")
def straight(root, tmp_path_factory):
    """One run that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("straight")
    return workdir, run_stage(root, workdir)


def weights(workdir: Path) -> bytes:
    return (workdir / "model" / "model.safetensors").read_bytes()


def metric_lines(workdir: Path) -> list[dict]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def start(root: Path, workdir: Path, *place: str) -> subprocess.Popen:
    workdir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.stages.sft.stage", str(root), str(workdir), *place]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL)


def test_it_learns_and_writes_a_model(root, straight):
    workdir, result = straight
    lines = metric_lines(workdir)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert lines[-1]["train/loss"] < 0.6 * lines[0]["train/loss"]
    assert result["metrics"]["train/supervised_tokens"] == sum(line["train/tokens"] for line in lines)
    assert result["metrics"]["data/data_conversations"] == 40
    assert result["facts"]["model"]["adapter"] is False
    load_policy(workdir / "model", "float32")


def test_packing_learns_the_same(root, straight, tmp_path):
    run_stage(root, tmp_path, config(packing=True))
    for packed, plain in zip(metric_lines(tmp_path), metric_lines(straight[0]), strict=True):
        assert packed["train/tokens"] == plain["train/tokens"]
        assert packed["train/loss"] == pytest.approx(plain["train/loss"], rel=1e-3)


def kill_when(process: subprocess.Popen, condition) -> None:
    while not condition():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_kill_9_then_resume_is_bit_identical(root, straight, tmp_path):
    """Killed after a checkpoint and a few steps; what the second process ends with is what one process ends with."""
    metrics = tmp_path / "metrics.jsonl"
    kill_when(start(root, tmp_path), lambda: metrics.exists() and metrics.read_text().count("\n") >= 8)
    assert not (tmp_path / "result.json").exists()
    assert start(root, tmp_path).wait() == 0
    assert "resumed from step" in (tmp_path / "notes.jsonl").read_text()
    assert weights(tmp_path) == weights(straight[0])
    assert metric_lines(tmp_path) == metric_lines(straight[0])
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(json.dumps(straight[1]))


def interrupt_at(root: Path, workdir: Path, step: int, **place) -> None:
    """What SIGTERM does, at a chosen step."""

    class Stopping(Context):
        def progress(self, done: int, total: int, **shown: float) -> None:
            if done == step:
                self.stop.set()

    workdir.mkdir(parents=True, exist_ok=True)
    with pytest.raises(Interrupted):
        run(config(), make_inputs(root), Stopping(stage="cold_start", workdir=workdir, seed=0, **place))


@pytest.mark.parametrize("step", [1, 5, 10])  # 5: the end of an epoch (40 examples, 8 a step)
def test_a_stop_request_checkpoints_and_nothing_is_replayed(root, straight, tmp_path, step):
    interrupt_at(root, tmp_path, step)
    assert run_stage(root, tmp_path)["metrics"] == straight[1]["metrics"]
    assert f"resumed from step {step}" in (tmp_path / "notes.jsonl").read_text()
    assert weights(tmp_path) == weights(straight[0])
    assert metric_lines(tmp_path) == metric_lines(straight[0])


def test_resume_after_the_last_step_trains_nothing_and_ends_the_same(root, straight, tmp_path):
    run_stage(root, tmp_path)
    before = weights(tmp_path)
    (tmp_path / "model" / "model.safetensors").unlink()  # died while publishing
    assert run_stage(root, tmp_path)["metrics"] == straight[1]["metrics"]
    assert weights(tmp_path) == before and len(metric_lines(tmp_path)) == STEPS


def test_a_damaged_checkpoint_costs_time_not_the_result(root, straight, tmp_path):
    interrupt_at(root, tmp_path, 8)
    newest = sorted((tmp_path / "checkpoints").glob("step-*"))[-1] / "state-0.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    run_stage(root, tmp_path)
    assert "resumed from step 6" in (tmp_path / "notes.jsonl").read_text()
    assert weights(tmp_path) == weights(straight[0])


def test_two_ranks_go_on_from_one(root, straight, tmp_path):
    """Another number of ranks (and ZeRO-2): the same examples a step, so the same losses up to rounding."""
    interrupt_at(root, tmp_path, 5)
    engine = json.dumps({})
    ranks = [start(root, tmp_path, str(rank), "2", "a", engine) for rank in range(2)]
    assert [process.wait() for process in ranks] == [0, 0]
    assert "written by 1 ranks and read by 2" in (tmp_path / "notes.jsonl").read_text()
    for got, wanted in zip(metric_lines(tmp_path), metric_lines(straight[0]), strict=True):
        assert got["train/tokens"] == wanted["train/tokens"]
        assert got["train/loss"] == pytest.approx(wanted["train/loss"], rel=1e-4)


def test_nothing_supervised_is_a_failure(root, tmp_path):
    with pytest.raises(StageFailed, match="nothing would be learned"):
        run_stage(root, tmp_path, config(max_tokens=4))
    save_conversations(tmp_path / "none", [])
    inputs = make_inputs(root)
    empty = inputs["data"].__class__("data", "dataset:conversations", tmp_path / "none", {}, "", "")
    with pytest.raises(StageFailed, match="nothing would be learned"):
        run(config(), {**inputs, "data": empty}, Context(stage="s", workdir=tmp_path, seed=0))


def test_outline_refuses_what_cannot_be_right():
    model = {"parameters": 5, "context_length": 64, "tokenizer_hash": "x", "end_tokens": [1], "dtype": "float32"}
    wired = {"policy": model, "data": {"rows": 3}}
    good = outline(SFTConfig(seed=0, max_tokens=64, steps=7), wired)
    assert not good.faults and good.steps == 7 and good.parameters == 5
    assert good.outputs["model"]["tokenizer_hash"] == "x" and "dtype" not in good.outputs["model"]
    assert "general_fraction" in good.inert
    assert [fault.key for fault in outline(SFTConfig(seed=0, max_tokens=65), wired).faults] == ["max_tokens"]
    assert [fault.key for fault in outline(SFTConfig(seed=0), {"policy": {}}).faults] == ["source"]
    assert [fault.key for fault in outline(SFTConfig(seed=0), {"policy": {}, "data": {"rows": 0}}).faults] == ["source"]
    few_shot = outline(SFTConfig(seed=0, source="few_shot"), {"policy": {}})
    assert [fault.key for fault in few_shot.faults] == ["inputs.problems"]
    problems = {"policy": {}, "problems": {"suites": {"reasoning": {}, "general": {}}}}
    assert not outline(SFTConfig(seed=0, source="few_shot", few_shot_suite="general"), problems).faults
    (fault,) = outline(SFTConfig(seed=0, source="few_shot", few_shot_suite="resoning"), problems).faults
    assert (fault.key, fault.remedy) == ("few_shot_suite", "write general or reasoning")
    bad = SFTConfig(seed=0, steps=0, over_length="cut", general_fraction=1.5, source="web")
    assert {fault.key for fault in bad.faults()} == {"steps", "over_length", "general_fraction", "source"}
