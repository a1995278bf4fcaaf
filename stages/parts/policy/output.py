"""A trained stage's output port `model`: weights consolidated once, verified, declared."""

from __future__ import annotations

from pathlib import Path

from pipeline.tracking import Context
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.distributed import barrier
from stages.parts.policy.model import save_policy
from stages.parts.policy.train_engine import TrainEngine
from stages.parts.policy.value_head import without_value_head


def save_trained(
    engine: TrainEngine, base: Path, cfg: TrainedStageConfig, context: Context, port: str = "model"
) -> None:
    """Collective; rank 0 writes and declares. LoRA: merged weights, or (lora.merge=false) the adapter, whose base is
    the folder `base` that the stage read. A value head stays behind."""
    if cfg.lora.rank > 0 and not cfg.lora.merge:
        from stages.parts.policy.lora import save_adapter  # peft is an extra

        state = engine.full_state(merge=False)
        facts = save_adapter(context.output(port), state, engine.policy, base) if context.is_main else {}
    else:
        state = without_value_head(engine.full_state())
        facts = save_policy(context.output(port), state, engine.policy) if context.is_main else {}
    barrier()
    if context.is_main:
        context.declare(port, **facts)
