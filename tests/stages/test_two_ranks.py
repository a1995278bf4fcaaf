"""Stages that sample, on two real ranks, against one process: RL and PPO under ZeRO-3, sampling and evaluation."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import deepspeed
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import stages.evaluate.run
import stages.ppo.run
import stages.rl.run
import stages.sample.run
from pipeline.artifacts import Artifact
from pipeline.config import EngineConfig
from pipeline.tracking import Context
from stages.evaluate.config import EvaluateConfig
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.policy.model import load_policy
from stages.parts.verifiers.config import RewardConfig
from stages.ppo.config import PPOAlgorithmConfig, PPOConfig
from stages.rl.config import RLConfig
from stages.sample.config import SampleConfig
from tests.stages.answering import SUMS, artifacts, make_problem
from tests.stages.digits import digit_inputs

pytestmark = pytest.mark.slow
COMMON = {
    "seed": 0, "steps": 4, "prompts_per_step": 4, "G": 4, "updates_per_rollout": 2, "max_response_tokens": 6,
    "learning_rate": 1e-3, "tokens_per_microbatch": 200, "reward": RewardConfig(accuracy=1.0, require_box=False),
    "monitor_every_steps": 2, "monitor_problems": 4, "dtype": "float32",
}  # fmt: skip
LEARNERS = {
    "rl": RLConfig(**COMMON, algorithm=AlgorithmConfig(name="grpo", beta=0.01, epsilon=0.2)),
    "ppo": PPOConfig(**COMMON, algorithm=PPOAlgorithmConfig(beta=0.01, epsilon=0.2)),
}
ROLLOUTS = 2
SAMPLE = SampleConfig(seed=0, samples=6, max_response_tokens=40, keep_per_problem=2)
EVALUATE = EvaluateConfig(
    seed=0, split="test", suites=["reasoning"], max_problems=9, samples=4, ks=[1, 4], temperature=1.0, top_p=1.0,
    max_response_tokens=40,
)  # fmt: skip
RUNS = {"rl": stages.rl.run, "ppo": stages.ppo.run, "sample": stages.sample.run, "evaluate": stages.evaluate.run}


class Seen:
    """What one rank did: its rows by group, and how often a parameter was put together outside forward and backward."""

    def __init__(self, name: str) -> None:
        self.groups: list[list[int]] = []
        self.gathered = 0
        module, gather = RUNS[name], deepspeed.zero.GatheredParameters.__enter__
        collect = module.collect

        def collecting(*args, **kwargs):
            before = self.gathered
            experience = collect(*args, **kwargs)
            assert self.gathered == before, "weights were gathered while sampling"
            self.groups.append([row.group for row in experience.rows])
            return experience

        def gathering(one):
            self.gathered += 1
            return gather(one)

        module.collect = collecting
        deepspeed.zero.GatheredParameters.__enter__ = gathering


def run(name: str, cfg, inputs: dict[str, Artifact], folder: Path, rank: int = 0, ranks: int = 1) -> dict[str, float]:
    folder.mkdir(parents=True, exist_ok=True)
    return RUNS[name].run(cfg, inputs, Context(f"stage_{name}", folder, 0, rank, ranks))


def one_rank(rank: int, folder: str, name: str, cfg, inputs: dict[str, Artifact]) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    seen = Seen(name) if name in LEARNERS else None
    metrics = run(name, cfg, inputs, Path(folder) / "two", rank, 2)
    told = {"metrics": metrics} | (vars(seen) if seen else {})
    (Path(folder) / f"seen-{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def on_two_ranks(folder: Path, name: str, cfg, inputs: dict[str, Artifact]) -> list[dict]:
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=one_rank, args=(rank, str(folder), name, cfg, inputs)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    return [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(2)]


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", LEARNERS)
def test_learning_from_samples_under_zero_3(tmp_path, name):
    inputs, cfg = digit_inputs(tmp_path / "inputs"), LEARNERS[name]
    partitioned = replace(cfg, engine=EngineConfig(kind="deepspeed", zero_stage=3))
    seen = on_two_ranks(tmp_path, name, partitioned, inputs)
    for first, second in zip(seen[0]["groups"], seen[1]["groups"], strict=True):
        assert not set(first) & set(second) and sorted({*first, *second}) == list(range(8))
        assert all(rows.count(group) == cfg.G for rows in (first, second) for group in set(rows))
    # Once a rollout phase; then for the last look at held-out problems, and to hand on.
    parameters = len(list(load_policy(inputs["policy"].path).model.parameters()))
    assert [one["gathered"] for one in seen] == [(ROLLOUTS + 2) * parameters] * 2
    run(name, cfg, inputs, tmp_path / "one")
    for two, one in zip(lines(tmp_path / "two"), lines(tmp_path / "one"), strict=True):
        for key in ("train/loss", "train/grad_norm", "train/kl", "train/entropy"):
            assert two[key] == pytest.approx(one[key], rel=1e-3, abs=1e-5), key
        for key in ("reward/mean", "length/mean", "heldout/reasoning/pass@1"):
            assert two.get(key) == pytest.approx(one.get(key)), key
    before = load_file(inputs["policy"].path / "model.safetensors")
    two, one = (load_file(tmp_path / folder / "model" / "model.safetensors") for folder in ("two", "one"))
    apart = sum(float((two[key] - one[key]).square().sum()) for key in one) ** 0.5
    moved = sum(float((one[key] - before[key]).square().sum()) for key in one) ** 0.5
    assert set(two) == set(one) and apart < 1e-3 * moved


@pytest.mark.parametrize(("name", "cfg", "port"), [("sample", SAMPLE, "policy"), ("evaluate", EVALUATE, "model")])
def test_problems_are_shared_out_and_nothing_changes(tmp_path, answering_policy, name, cfg, port):
    problems = [make_problem(a, b) for a, b in SUMS] + [make_problem(9, 9, answer="1")]
    splits = {"train": problems, "dev": [], "test": problems}
    inputs = artifacts(tmp_path / "inputs", answering_policy, splits, port)
    expected = run(name, cfg, inputs, tmp_path / "one")
    for rank in on_two_ranks(tmp_path, name, cfg, inputs):
        assert rank["metrics"] == pytest.approx(expected, nan_ok=True)
    written = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").glob("*/*.jsonl")]
    assert len(written) >= 2
    for path in written:
        assert (tmp_path / "two" / path).read_text() == (tmp_path / "one" / path).read_text(), path
