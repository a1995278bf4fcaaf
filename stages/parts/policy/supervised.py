"""Supervised training, shared by `sft` and `distill`: conversations -> batches -> update -> log -> checkpoint.

Differs from the textbook: the loss is divided by the supervised tokens of the whole step, counted over all ranks before
the first micro-batch (transformers#37766 and its many kin divided per micro-batch).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.artifacts import StageFailed
from pipeline.tracking import Context, Metrics
from stages.parts.data.audit import Row, check_first_step
from stages.parts.losses.counts import BatchCounts
from stages.parts.losses.sft import sft_loss
from stages.parts.policy.batch import TokenBatch, aligned_microbatches, pack_batch
from stages.parts.policy.config import SupervisedStageConfig
from stages.parts.policy.distributed import all_sum
from stages.parts.policy.examples import Example, Source, examples_of_step, shares
from stages.parts.policy.loop import run_steps
from stages.parts.policy.model import Policy
from stages.parts.policy.output import save_trained
from stages.parts.policy.schedule import learning_rate
from stages.parts.policy.train_engine import TrainEngine, build_engine

# engine, this rank's examples, config, learning rate -> metrics of the whole step, train/loss and train/tokens in them
Step = Callable[[TrainEngine, list[Example], Any, float], Metrics]
TOTALS = {
    "train/tokens": "train/supervised_tokens",
    "teacher/tokens": "teacher/total_tokens",
}  # metric of a step -> sum


def train(
    cfg: SupervisedStageConfig,
    policy: Policy,
    base: Path,
    sources: list[Source],
    context: Context,
    take_step: Step | None = None,
) -> Metrics:
    """Train `policy` (loaded from `base`) on `sources`, write the output port `model`, return the final metrics.

    take_step: the loss; None: `supervised_step`, the NLL of the text.
    """
    loss_step: Step = take_step or supervised_step
    per_step = shares(cfg.examples_per_step, cfg.general_fraction, sources)
    engine = build_engine(policy, cfg, context)

    def one_step(step: int) -> tuple[Metrics, Metrics]:
        everyone = examples_of_step(sources, per_step, cfg.seed, step)
        first = _look_at_first_step(everyone, policy, cfg, context) if step == 0 else {}
        rate = learning_rate(step, cfg)
        metrics = loss_step(engine, everyone[context.rank :: context.world_size], cfg, rate)
        return metrics | {"train/learning_rate": rate}, first

    metrics = run_steps(engine, cfg, context, one_step, TOTALS)
    save_trained(engine, base, cfg, context)
    return metrics | _data_metrics(sources)


def _look_at_first_step(
    examples: list[Example], policy: Policy, cfg: SupervisedStageConfig, context: Context
) -> Metrics:
    """What the loss sees, checked before anything is trained on it (scripts/audit.py shows it)."""
    rows = [Row(example.ids, example.mask) for example in examples]
    result = check_first_step(rows, policy.tokenizer, policy.end_ids, pieces=cfg.over_length == "split")
    for note in result.notes:
        context.note(f"first step: {note}")
    return result.metrics()


def supervised_step(engine: TrainEngine, examples: list[Example], cfg: SupervisedStageConfig, rate: float) -> Metrics:
    """One optimizer step on this rank's `examples`; metrics are of the whole step, the same on every rank."""
    sequences, tokens = all_sum([float(len(examples)), float(sum(sum(example.mask[1:]) for example in examples))])
    if tokens == 0:
        raise StageFailed("a step without a single supervised token: nothing would be learned")
    counts = BatchCounts(sequences, tokens, cfg.max_tokens)
    nll = 0.0
    for batch in supervised_batches(engine.policy, examples, cfg):
        stats = engine.logps(batch)
        loss, sums = sft_loss(stats.logps_BT, batch.mask_BT, counts)
        engine.backward(loss)
        nll += float(sums["nll"])
    result = engine.step(rate)
    [nll] = all_sum([nll])
    return {
        "train/loss": nll / tokens,
        "train/tokens": tokens,
        "train/grad_norm": result.grad_norm,
        "train/skipped": float(result.skipped),
    }


def supervised_batches(policy: Policy, examples: list[Example], cfg: SupervisedStageConfig) -> list[TokenBatch]:
    """The step's micro-batches, as many on every rank; packed rows are max_tokens wide."""
    width = cfg.max_tokens if cfg.packing else None
    batches = []
    for members in aligned_microbatches([len(example.ids) for example in examples], cfg.tokens_per_microbatch, width):
        chosen = [examples[index] for index in members]
        ids = [example.ids for example in chosen]
        masks = [[float(flag) for flag in example.mask] for example in chosen]
        batches.append(pack_batch(ids, masks, policy.pad_id, policy.device, width))
    return batches


def _data_metrics(sources: list[Source]) -> Metrics:
    metrics = {}
    for source in sources:
        metrics |= {f"data/{source.name}_{key}": float(value) for key, value in source.counts.items()}
        metrics[f"data/{source.name}_examples"] = float(len(source.examples))
    return metrics
