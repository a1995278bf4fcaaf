"""`reward_model`: pairs -> batches -> update -> log -> checkpoint; then what held-out pairs say, and the model.

Differs from the textbook: both sides of a pair lie in one micro-batch, the loss is divided by the pairs of the whole
step over all ranks, and the pairs of step s are a pure function of (seed, s), so a stage resumes at any step on any
number of ranks. Centres are taken on dev pairs, accuracy on test pairs, which nothing else looks at.
"""

from __future__ import annotations

import json

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context, Metrics
from stages.parts.data.pairs import load_pairs
from stages.parts.losses.preference import bradley_terry_loss
from stages.parts.policy.batch import aligned_microbatches
from stages.parts.policy.distributed import all_sum, barrier
from stages.parts.policy.examples import rows_of_step
from stages.parts.policy.loop import run_steps
from stages.parts.policy.memory import PeakMemory
from stages.parts.policy.reward_model import new_reward_model, save_reward_model
from stages.parts.policy.schedule import learning_rate
from stages.parts.policy.train_engine import TrainEngine, build_engine
from stages.reward_model.config import RewardModelConfig
from stages.reward_model.pairs import (
    Encoded,
    TokenPair,
    Verdict,
    centres_of,
    check_usable,
    encode_pairs,
    heldout_numbers,
    judge_pairs,
    pair_rewards,
)

SHOWN = 3  # pairs with a right and with a wrong verdict in samples.jsonl


def run(cfg: RewardModelConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Train a head and the body of `policy` on `preferences`; returns what held-out pairs say."""
    memory = PeakMemory()
    policy = new_reward_model(inputs["policy"].path, cfg.dtype)
    splits = {
        split: encode_pairs(load_pairs(inputs["preferences"].path, split), policy.tokenizer, cfg.max_tokens)
        for split in ("train", "dev", "test")
    }
    check_usable(splits["train"], cfg.max_tokens)
    engine = build_engine(policy, cfg, context)
    metrics = train(engine, splits, cfg, context)
    # A file of few rows may have no usable pair in a split: the numbers then are of what there is, and say so.
    dev = splits["dev"].pairs or splits["train"].pairs
    centres = centres_of(judge(engine, dev, cfg, context))
    test = judge(engine, splits["test"].pairs or dev, cfg, context)
    if not splits["test"].pairs:
        context.note(f"no usable test pair: accuracy is of {'dev' if splits['dev'].pairs else 'training'} pairs")
    _write(engine, test, centres, cfg, context)
    epochs = cfg.steps * cfg.pairs_per_step / len(splits["train"].pairs)
    data = {f"data/{name}": float(count) for name, count in splits["train"].counts.items()} | {"data/epochs": epochs}
    numbers = heldout_numbers(test, centres, cfg.seed)
    context.log(cfg.steps, numbers)
    return metrics | numbers | data | memory.metrics((policy.model, cfg.engine, True))


def train(engine: TrainEngine, splits: dict[str, Encoded], cfg: RewardModelConfig, context: Context) -> Metrics:
    """All steps; returns the metrics of the last one."""

    def one_step(step: int) -> tuple[Metrics, Metrics]:
        everyone = rows_of_step(splits["train"].pairs, "pairs", cfg.pairs_per_step, cfg.seed, step)
        rate = learning_rate(step, cfg)
        metrics = preference_step(engine, everyone[context.rank :: context.world_size], cfg, rate)
        metrics["train/learning_rate"] = rate
        if (step + 1) % cfg.monitor_every_steps == 0 and splits["dev"].pairs:
            verdicts = judge(engine, splits["dev"].pairs[: cfg.monitor_pairs], cfg, context)
            metrics["dev/accuracy"] = sum(verdict.right for verdict in verdicts) / len(verdicts)
        return metrics, {}

    return run_steps(engine, cfg, context, one_step, {})


def preference_step(engine: TrainEngine, pairs: list[TokenPair], cfg: RewardModelConfig, rate: float) -> Metrics:
    """One optimizer step on this rank's `pairs`; metrics are of the whole step, the same on every rank."""
    [count] = all_sum([float(len(pairs))])
    if count == 0:
        raise StageFailed("a step without a single pair: nothing would be learned")
    sums = dict.fromkeys(("loss", "nll", "right", "margin", "reward"), 0.0)
    for indices in aligned_microbatches([pair.room for pair in pairs], cfg.tokens_per_microbatch):
        chosen_P, rejected_P = pair_rewards(
            [pairs[index] for index in indices], engine.policy, lambda batch: engine.logps(batch).values_BT
        )
        loss, part = bradley_terry_loss(chosen_P, rejected_P, count, cfg.centre_weight)
        engine.backward(loss)
        sums = {name: total + float(part[name]) for name, total in sums.items()}
    result = engine.step(rate)
    sums = dict(zip(sums, all_sum(list(sums.values())), strict=True))
    return {
        "train/loss": sums["loss"] / count,
        "train/nll": sums["nll"] / count,
        "train/accuracy": sums["right"] / count,
        "train/margin": sums["margin"] / count,  # reward of the chosen one above the rejected one
        "train/reward": sums["reward"] / count,  # mean over all responses; the centre holds it near 0
        "train/grad_norm": result.grad_norm,
        "train/skipped": float(result.skipped),
    }


def judge(engine: TrainEngine, pairs: list[TokenPair], cfg: RewardModelConfig, context: Context) -> list[Verdict]:
    shard = (context.rank, context.world_size)
    return judge_pairs(
        pairs, engine.policy, lambda batch: engine.logps(batch).values_BT, cfg.tokens_per_microbatch, shard
    )


def _write(
    engine: TrainEngine, verdicts: list[Verdict], centres: dict[str, float], cfg: RewardModelConfig, context: Context
) -> None:
    """Both outputs; collective, rank 0 writes."""
    state = engine.full_state()
    context.declare("results", rows=len(verdicts))
    if context.is_main:
        facts = save_reward_model(context.output("model"), state, engine.policy, centres)
        context.declare("model", **facts, axes=sorted(centres), centres=centres)
        rows = [
            {"problem_id": v.pair.problem_id, "axis": v.pair.axis, "reason": v.pair.reason, "chosen": v.chosen,
             "rejected": v.rejected, "right": v.right}
            for v in verdicts
        ]  # fmt: skip
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (context.output("results") / "results.jsonl").write_text(text, encoding="utf-8")
    for right in (1.0, 0.0):
        shown = [_shown(v, centres) for v in verdicts if v.right == right][:SHOWN]
        context.samples(cfg.steps, shown)
    barrier()


def _shown(verdict: Verdict, centres: dict[str, float]) -> dict[str, object]:
    pair, centre = verdict.pair, centres.get(verdict.pair.axis, 0.0)
    better, worse = (f"{reward - centre:+.2f}" for reward in (verdict.chosen, verdict.rejected))
    return {
        "prompt": pair.messages[-1]["content"],
        "response": f"chosen {better}: {pair.chosen}\nrejected {worse}: {pair.rejected}",
        "axis": pair.axis,
        "reason": pair.reason,
        "verdict": "right" if verdict.right else "wrong",
    }
