"""One optimizer step of logit distillation: the text's NLL and the divergence from the teacher, token by token."""

from __future__ import annotations

from pipeline.artifacts import StageFailed
from pipeline.tracking import Metrics
from stages.distill.config import DistillConfig
from stages.parts.losses.counts import BatchCounts
from stages.parts.losses.distillation import hard_and_soft
from stages.parts.losses.reductions import token_weights
from stages.parts.policy.distributed import all_sum
from stages.parts.policy.examples import Example
from stages.parts.policy.soft_targets import Divergence, Targets
from stages.parts.policy.supervised import supervised_batches
from stages.parts.policy.train_engine import TrainEngine


def soft_step(
    engine: TrainEngine, examples: list[Example], cfg: DistillConfig, rate: float, targets: Targets
) -> Metrics:
    """On this rank's `examples`; metrics are of the whole step, the same on every rank."""
    sequences, tokens, read = all_sum([
        float(len(examples)),
        float(sum(sum(example.mask[1:]) for example in examples)),
        float(sum(len(example.ids) for example in examples)) if targets.reads_along else 0.0,
    ])  # fmt: skip
    if tokens == 0:
        raise StageFailed("a step without a single supervised token: nothing would be learned")
    counts = BatchCounts(sequences, tokens, cfg.max_tokens)
    wanted = Divergence(cfg.objective, cfg.temperature, cfg.jsd_weight)
    nll, soft = 0.0, 0.0
    for batch in supervised_batches(engine.policy, examples, cfg):
        stats = engine.logps(batch, compare=targets.compare(batch, wanted))
        soft_BT = stats.compared_BT
        assert soft_BT is not None
        loss_BT = hard_and_soft(-stats.logps_BT, soft_BT, temperature=cfg.temperature, hard_weight=cfg.hard_weight)
        engine.backward((token_weights("token_mean", batch.mask_BT, counts) * loss_BT).sum())
        nll -= float(stats.logps_BT.detach().sum())
        soft += float(soft_BT.detach().sum())
    result = engine.step(rate)
    nll, soft = (total / tokens for total in all_sum([nll, soft]))
    return {
        "train/loss": cfg.hard_weight * nll + (1.0 - cfg.hard_weight) * cfg.temperature**2 * soft,
        "train/nll": nll,
        "train/divergence": soft,  # nats a token, without temperature^2
        "train/tokens": tokens,
        "train/grad_norm": result.grad_norm,
        "train/skipped": float(result.skipped),
        "teacher/tokens": read,
    }
