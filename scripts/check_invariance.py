"""Does the update of a stage depend on how it is computed? Its own loss over every split, and a verdict.

    python scripts/check_invariance.py --stage reasoning_rl pipeline=r1_style experiment=smoke

Ordinary flags first, then the same overrides as run.py. Three steps of the stage's own update on made-up sequences
(the content does not matter here), its own model architecture, algorithm and optimizer; micro-batch sizes, packing,
ranks and ZeRO stages are varied. Exit status 1 where a gradient, loss, norm or update differs beyond rounding.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.compose import compose
from pipeline.config import RunConfig
from pipeline.messages import Refused
from pipeline.tracking import Metrics
from stages.base_model.config import BaseModelConfig, ModelConfig
from stages.base_model.scratch import new_policy
from stages.distill.config import DistillConfig
from stages.distill.soft import soft_step
from stages.on_policy_distill.config import OnPolicyDistillConfig
from stages.on_policy_distill.update import readings_of
from stages.on_policy_distill.update import update as update_on_policy
from stages.parts.data.pairs import Pair
from stages.parts.experience.collect import Row
from stages.parts.experience.config import ExperienceConfig
from stages.parts.policy.config import SupervisedStageConfig, TrainedStageConfig
from stages.parts.policy.examples import Example
from stages.parts.policy.invariance import Difference, Task, all_splits, compare
from stages.parts.policy.model import Policy, load_policy
from stages.parts.policy.reference import frozen
from stages.parts.policy.soft_targets import OnlineTargets, real_vocabulary
from stages.parts.policy.supervised import supervised_step
from stages.parts.policy.train_engine import TrainEngine
from stages.parts.policy.value_head import add_value_head
from stages.parts.rollouts.types import Problem, Rollout
from stages.ppo.config import PPOConfig
from stages.ppo.update import Learners
from stages.ppo.update import update as update_ppo
from stages.reward_model.config import RewardModelConfig
from stages.reward_model.pairs import TokenPair
from stages.reward_model.run import preference_step
from stages.rl.config import RLConfig
from stages.rl.update import update

GROUPS, LONGEST = 4, 48  # enough to be ragged, short enough for a laptop


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stage", required=True, help="name of a stage that trains: cold_start, reasoning_rl, ...")
    parser.add_argument("--ranks", type=int, default=2, help="the largest number of ranks to try (1: this process)")
    parser.add_argument(
        "--plant-fault", action="store_true", help="divide gradients once more by accumulation: must fail"
    )
    flags, overrides = parser.parse_known_args()
    try:
        cfg = compose(overrides)
        task = task_of(cfg, flags.stage)
    except (Refused, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    task.fault = flags.plant_fault
    ranks, stages = ((), ()) if task.fault else (tuple(range(1, flags.ranks + 1)), (0, 1, 2, 3))
    splits = all_splits(hasattr(task.cfg, "packing"), ranks, stages)
    differences = compare(task, splits)
    print(table(flags.stage, splits[0].name, differences))
    return 0 if all(difference.agrees for difference in differences) else 1


def task_of(cfg: RunConfig, name: str) -> Task:
    """The stage's own update. Raises ValueError for a stage that trains nothing."""
    stage = cfg.stages.get(name)
    kinds = SupervisedStageConfig | RLConfig | PPOConfig | OnPolicyDistillConfig | RewardModelConfig
    if not isinstance(stage, kinds):
        known = [key for key, value in cfg.stages.items() if isinstance(value, kinds)]
        raise ValueError(f"--stage {name}: not a stage that is checked here; write one of {', '.join(known)}")
    make = partial(make_policy, base_of(cfg, name), cfg.seed)
    if isinstance(stage, PPOConfig):  # both losses through one model, whichever critic the stage has
        return Task(stage, partial(with_value_head, make), ppo_step)
    if isinstance(stage, OnPolicyDistillConfig):
        return Task(stage, make, partial(on_policy_step, base_of(cfg, name)))
    if isinstance(stage, DistillConfig) and stage.is_soft:
        return Task(stage, make, partial(soft_part, base_of(cfg, name)))
    if isinstance(stage, RewardModelConfig):
        return Task(stage, partial(with_value_head, make, body=True), pair_step)
    return Task(stage, make, rl_step if isinstance(stage, RLConfig) else supervised_part)


def base_of(cfg: RunConfig, name: str) -> ModelConfig:
    """The model configuration at the start of the stage's chain; only its architecture matters."""
    stage = cfg.stages[name]
    while not isinstance(stage, BaseModelConfig):
        source = stage.inputs.get("policy") or stage.inputs.get("student") or ""
        if source.partition(".")[0] not in cfg.stages:
            raise ValueError(f"--stage {name}: its model comes from '{source}', which is no stage of this pipeline")
        stage = cfg.stages[source.partition(".")[0]]
    return stage.model


def make_policy(base: ModelConfig, seed: int, cfg: TrainedStageConfig) -> Policy:
    if base.source == "scratch":
        return new_policy(base, seed)
    return load_policy(Path(str(base.name_or_path)), "float32", base.trust_remote_code)


def with_value_head(
    make: Callable[[TrainedStageConfig], Policy], cfg: TrainedStageConfig, body: bool = False
) -> Policy:
    """`body`: without the language model's own head, as a reward model is trained; its head then is not all zero, so
    that the body has a gradient from the first step on."""
    policy = make(cfg)
    if not body:
        add_value_head(policy.model)
        return policy
    decoder = policy.model.get_decoder()
    add_value_head(decoder, bias=False)
    with torch.no_grad():
        decoder.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    return replace(policy, model=decoder)


def pair_step(engine: TrainEngine, cfg: RewardModelConfig, step: int, rate: float, rank: int, ranks: int) -> Metrics:
    pairs = []
    for index in range(3 * GROUPS):
        sides = [made_up_sequence(engine.policy, step, 2 * index + side)[0] for side in (0, 1)]
        pairs.append(TokenPair(Pair(f"p{index}", [], "", ""), *sides))
    return preference_step(engine, pairs[rank::ranks], cfg, rate)


def supervised_part(
    engine: TrainEngine, cfg: SupervisedStageConfig, step: int, rate: float, rank: int, ranks: int
) -> Metrics:
    return supervised_step(engine, made_up_examples(engine.policy, step)[rank::ranks], cfg, rate)


def soft_part(
    base: ModelConfig, engine: TrainEngine, cfg: DistillConfig, step: int, rate: float, rank: int, ranks: int
) -> Metrics:
    examples = made_up_examples(engine.policy, step)[rank::ranks]
    return soft_step(engine, examples, cfg, rate, teacher_of(base, engine, cfg))


def on_policy_step(
    base: ModelConfig, engine: TrainEngine, cfg: OnPolicyDistillConfig, step: int, rate: float, rank: int, ranks: int
) -> Metrics:
    rows = [made_up_row(engine.policy, cfg, step, group, 0) for group in range(GROUPS)]
    readings = readings_of(rows, made_up_examples(engine.policy, step))
    return update_on_policy(readings[rank::ranks], engine, teacher_of(base, engine, cfg), cfg, rate)


def teacher_of(base: ModelConfig, engine: TrainEngine, cfg: TrainedStageConfig) -> OnlineTargets:
    """The student's own architecture with other weights, in pieces where the stage's engine has it so."""
    policy = make_policy(base, cfg.seed + 1, cfg)
    policy.model.get_input_embeddings().weight.data.mul_(1.5)  # a pretrained one would be the student itself
    vocabulary = real_vocabulary(engine.policy, policy)
    return OnlineTargets(frozen(policy, cfg, is_teacher=True), vocabulary)


def made_up_examples(policy: Policy, step: int) -> list[Example]:
    made = [made_up_sequence(policy, step, index) for index in range(3 * GROUPS)]
    return [Example(ids, [place >= prompt for place in range(len(ids))]) for ids, prompt in made]


def rl_step(engine: TrainEngine, cfg: RLConfig, step: int, rate: float, rank: int, ranks: int) -> Metrics:
    rows = [made_up_row(engine.policy, cfg, step, group, sample) for group in range(GROUPS) for sample in range(4)]
    return update([row for row in rows if row.group % ranks == rank], engine, cfg, rate)


def ppo_step(engine: TrainEngine, cfg: PPOConfig, step: int, rate: float, rank: int, ranks: int) -> Metrics:
    rows = [made_up_row(engine.policy, cfg, step, group, sample) for group in range(GROUPS) for sample in range(4)]
    for row in rows:
        assert row.old_logps is not None
        row.old_values = [0.5 + logp / 10 for logp in row.old_logps]  # any numbers
        row.returns = [value + row.advantages[0] for value in row.old_values]
    learners = Learners(engine, None)
    return update_ppo([row for row in rows if row.group % ranks == rank], learners, cfg, rate, rate)


def made_up_row(policy: Policy, cfg: ExperienceConfig, step: int, group: int, sample: int) -> Row:
    """A response whose ratios lie on both sides of the clip bounds, and whose advantage has either sign."""
    ids, prompt = made_up_sequence(policy, step, 100 * group + sample)
    generator = torch.Generator().manual_seed(7000 + 1000 * step + 100 * group + sample)
    size = len(ids) - prompt
    about = -math.log(policy.model.config.get_text_config().vocab_size)

    def logps() -> list[float]:
        return (about + 0.3 * torch.randn(size, generator=generator)).tolist()

    rollout = Rollout(f"p{group}", sample, ids[:prompt], ids[prompt:], logps(), truncated=False)
    problem = Problem(f"p{group}", "reasoning", "made_up", [], "")
    advantage = [1.5, -0.5, -1.0, 0.25][sample]
    return Row(group, problem, rollout, advantages=[advantage] * size, old_logps=logps(), reference_logps=logps())


def made_up_sequence(policy: Policy, step: int, index: int) -> tuple[list[int], int]:
    """Token ids, and how many of them are the prompt."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    vocabulary = policy.model.config.get_text_config().vocab_size
    length = int(torch.randint(4, LONGEST + 1, (1,), generator=generator))
    return torch.randint(0, vocabulary, (length,), generator=generator).tolist(), max(1, length // 3)


def table(stage: str, reference: str, differences: list[Difference]) -> str:
    head = f"{'split':38} {'gradient':>9} {'loss':>9} {'norm':>9} {'3 x SGD':>9} {'3 x Adam':>9}"
    lines = [f"{stage}: relative differences from '{reference}'", head]
    for d in differences:
        numbers = " ".join(f"{value:9.1e}" for value in (d.gradient, d.loss, d.norm, d.sgd, d.adam))
        lines.append(f"{d.split.name:38} {numbers}  {'ok' if d.agrees else 'DIFFERS'}")
    wrong = [d.split.name for d in differences if not d.agrees]
    verdict = "the update is the same for every split" if not wrong else f"the update depends on: {', '.join(wrong)}"
    return "\n".join([*lines, verdict])


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
