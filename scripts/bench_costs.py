"""Does the plan's estimate of a stage's memory hold? Each case runs as a stage does, and is compared with its plan.

    python scripts/bench_costs.py [CASE ...]

Exit status 1 where an estimate is more than 20% off. A case is a real stage on made-up data of full length: the
estimate is of the longest sequences that the configuration allows. Measured is the growth of the process, from after
its imports to its peak, in a process of its own (stages/parts/policy/memory.py; on a GPU the allocator's own peak).
The constants of pipeline/costs.py were fitted to the cases named fit_*; the others differ from them in what they say.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from pipeline.artifacts import Artifact
from pipeline.config import EngineConfig
from pipeline.costs import costs
from pipeline.kinds import kinds
from pipeline.runner import PRELOAD
from pipeline.tracking import Context
from stages.base_model.config import ModelConfig
from stages.parts.policy.work import OTHER_PROMPT

TOLERANCE = 0.2
PROMPT_CHARACTERS = OTHER_PROMPT - 3  # and the turns around it: what a plan assumes


@dataclass
class Case:
    kind: str  # sft | rl | ppo
    vocabulary: int = 8192
    model: dict[str, int] = field(default_factory=dict)  # fields of ModelConfig
    stage: dict[str, Any] = field(default_factory=dict)  # fields of the stage's config


SMALL = {"hidden_size": 128, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 32, "intermediate_size": 256}
WIDE = {"hidden_size": 384, "layers": 6, "heads": 6, "kv_heads": 2, "head_dim": 64, "intermediate_size": 1024}
SFT: dict[str, Any] = {"steps": 2, "examples_per_step": 32, "max_tokens": 192}
RL: dict[str, Any] = {"steps": 2, "G": 4, "prompts_per_step": 8, "updates_per_rollout": 2, "max_response_tokens": 96}
QWEN = 151_669
CASES = {
    "fit_sft": Case("sft", model=SMALL, stage=SFT),
    "fit_sft_wide": Case("sft", model=WIDE, stage=SFT),
    "fit_rl": Case("rl", model=SMALL, stage=RL),
    "fit_rl_wide": Case("rl", model=WIDE, stage=RL),
    "fit_ppo": Case("ppo", model=SMALL, stage=RL),
    "fit_ppo_wide": Case("ppo", model=WIDE, stage=RL),
    "fit_sft_long": Case("sft", model=SMALL, stage=SFT | {"max_tokens": 768}),
    "fit_rl_large_batch": Case("rl", model=SMALL, stage=RL | {"prompts_per_step": 32, "G": 8}),
    "sft_qwen_vocabulary": Case("sft", QWEN, SMALL, SFT),
    "sft_large_batch": Case("sft", model=SMALL, stage=SFT | {"examples_per_step": 128}),
    "sft_large_microbatch": Case(
        "sft", model=SMALL, stage=SFT | {"examples_per_step": 256, "tokens_per_microbatch": 32768}
    ),
    "sft_deep": Case("sft", model=SMALL | {"layers": 12}, stage=SFT | {"tokens_per_microbatch": 2048}),
    "ppo_large_batch": Case("ppo", model=SMALL, stage=RL | {"prompts_per_step": 32}),
    "sft_small_microbatch": Case("sft", model=WIDE, stage=SFT | {"tokens_per_microbatch": 1024}),
    "rl_qwen_vocabulary": Case("rl", QWEN, SMALL, RL),
    "rl_long": Case("rl", model=SMALL, stage=RL | {"max_response_tokens": 384}),
    "rl_long_wide": Case("rl", model=WIDE, stage=RL | {"max_response_tokens": 384}),
    "ppo_qwen_vocabulary": Case("ppo", QWEN, SMALL, RL),
    "ppo_long": Case("ppo", model=SMALL, stage=RL | {"max_response_tokens": 384}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help="names of CASES; all of them by default")
    names = parser.parse_args().cases
    print(f"{'case':22} {'estimated':>10} {'measured':>10} {'ratio':>6}   MiB")
    wrong = 0
    for name in names:
        (estimated, parts), measured = estimate(CASES[name]), in_a_process(CASES[name])
        ratio = estimated / measured
        wrong += abs(ratio - 1) > TOLERANCE
        print(f"{name:22} {estimated / 2**20:10.0f} {measured / 2**20:10.0f} {ratio:6.2f}   {parts}", flush=True)
    return 1 if wrong else 0


def config(case: Case) -> Any:
    from stages.parts.losses.config import AlgorithmConfig
    from stages.parts.policy.config import OptimizerConfig
    from stages.ppo.config import PPOAlgorithmConfig

    settings = case.stage | {"seed": 0, "optimizer": OptimizerConfig()}
    if case.kind != "sft":
        algorithm = {"rl": AlgorithmConfig, "ppo": PPOAlgorithmConfig}[case.kind]
        settings |= {"algorithm": algorithm(beta=0.01, epsilon=0.2), "monitor_problems": 2, "monitor_samples": 1}
    return kinds()[case.kind].config(**settings)


def estimate(case: Case) -> tuple[float, str]:
    """Bytes, and what takes most of them, as a dry run of this stage would tell."""
    facts = {"policy": {**case.model, "vocab_size": case.vocabulary}, "problems": {}, "data": {}}
    outline = kinds()[case.kind].outline(config(case), facts)
    assert outline.work is not None
    found = costs(outline.work, EngineConfig(), 1, torch.cuda.is_available())
    assert found.memory is not None and found.peak is not None
    parts = sorted(found.memory.items(), key=lambda part: -part[1])
    return found.peak, f"{found.moment}: " + ", ".join(f"{name} {size / 2**20:.0f}" for name, size in parts)


def in_a_process(case: Case) -> float:
    """Bytes at the peak, from two processes: one makes what the other one reads."""
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        for step in (prepare, measure):
            worker = spawn.Process(target=step, args=(case, Path(folder), answers))
            worker.start()
            worker.join()
            if worker.exitcode:
                raise SystemExit(f"{step.__name__} of {case} failed")
        return answers.get(timeout=60)


def prepare(case: Case, folder: Path, answers: Any) -> None:
    """A model with random weights, problems, and conversations of exactly max_tokens."""
    quiet()
    from stages.base_model.scratch import new_policy
    from stages.parts.data.conversations import save_conversations
    from stages.parts.data.problems import save_problems
    from stages.parts.policy.model import save_policy
    from stages.parts.rollouts.types import Problem

    policy = new_policy(ModelConfig("scratch", context_length=2048, **case.model), seed=0)
    policy.model.resize_token_embeddings(case.vocabulary, mean_resizing=False)
    save_policy(folder / "policy", dict(policy.model.state_dict()), policy)
    asked = [f"{number:04d}" + "+" * (PROMPT_CHARACTERS - 4) for number in range(400)]
    problems = [
        Problem(f"p{n}", "reasoning", "sums", [{"role": "user", "content": q}], "1") for n, q in enumerate(asked)
    ]
    save_problems(folder / "problems", {"train": problems[:300], "dev": problems[300:350], "test": problems[350:]})
    # As much of a conversation as can be carries loss: a plan does not know how long its questions are.
    answer = "1" * (case.stage.get("max_tokens", 100) - 8)
    turns = [
        [{"role": "user", "content": f"{n:04d}"}, {"role": "assistant", "content": answer}] for n in range(len(asked))
    ]
    rows = [{"messages": messages, "problem_id": f"p{n}", "suite": "reasoning"} for n, messages in enumerate(turns)]
    save_conversations(folder / "data", rows)


def measure(case: Case, folder: Path, answers: Any) -> None:
    quiet()
    for module in PRELOAD:
        importlib.import_module(module)
    from stages.parts.policy.memory import PeakMemory

    torch.set_num_threads(1)
    run = importlib.import_module(f"stages.{case.kind}.run").run
    ports = {port: one.kind for port, one in kinds()[case.kind].inputs.items() if (folder / port).exists()}
    inputs = {port: Artifact(port, kind, folder / port, {}, "", "") for port, kind in ports.items()}
    (folder / "work").mkdir()
    memory = PeakMemory()
    run(config(case), inputs, Context(case.kind, folder / "work", 0))
    answers.put(memory.metrics()["memory/peak_bytes"])


def quiet() -> None:
    """Bars and notes of a stage would stand between the lines of the table."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


if __name__ == "__main__":
    sys.exit(main())
