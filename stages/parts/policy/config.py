"""How a policy is optimised, as configuration. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.artifacts import Fault
from pipeline.config import StageConfig, not_in_fingerprint


@dataclass
class OptimizerConfig:
    """AdamW (arXiv:1711.05101) and its schedule, a pure function of the step."""

    schedule: str = "constant"  # constant | linear | cosine, after the warm-up
    warmup_fraction: float = 0.0  # of all steps
    final_fraction: float = 0.0  # of the peak, where linear and cosine end (R1: 0.1)
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0  # global norm; 0: no clipping
    name: str = "adamw"  # adamw | sgd (sgd is for invariance checks)
    nonfinite: str = "stop"  # stop | skip: what a non-finite loss or gradient does
    max_skipped_steps: int = 5  # skip: more than these stop the stage

    def faults(self) -> list[Fault]:
        faults = []
        if self.schedule not in ("constant", "linear", "cosine"):
            faults.append(Fault("schedule", f"'{self.schedule}' is unknown", "write constant, linear or cosine"))
        return faults


@dataclass
class LoRAConfig:
    """Low-rank adapters (arXiv:2106.09685). rank=0 trains all parameters."""

    rank: int = 0
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: list[str] = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"])
    merge: bool = True  # the output is merged weights; false: an adapter beside its base


@dataclass
class TrainedStageConfig(StageConfig):
    """What every kind that updates weights has."""

    steps: int = 100  # optimizer steps
    learning_rate: float = 1e-6  # peak of the schedule
    tokens_per_microbatch: int = not_in_fingerprint(16384)  # padded tokens of one forward pass: memory, not result
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    dtype: str = "auto"  # of the forward pass: auto (bf16 where the device has it) | float32 | bfloat16

    def faults(self) -> list[Fault]:
        faults = super().faults()
        if self.steps < 1:
            faults.append(
                Fault(
                    "steps",
                    f"is {self.steps}: nothing would be trained",
                    "write at least 1, or leave the stage out: ~stages.NAME",
                )
            )
        if self.learning_rate <= 0:
            faults.append(Fault("learning_rate", f"is {self.learning_rate}", "write a positive rate, 1e-6"))
        if self.tokens_per_microbatch < 1:
            faults.append(
                Fault("tokens_per_microbatch", f"is {self.tokens_per_microbatch}", "write a positive number, 16384")
            )
        for fault in self.optimizer.faults():
            faults.append(Fault(f"optimizer.{fault.key}", fault.problem, fault.remedy))
        return faults
