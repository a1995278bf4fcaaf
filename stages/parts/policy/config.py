"""How a policy is optimised, as configuration. Importable without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pipeline.artifacts import Fault
from pipeline.config import StageConfig, not_in_fingerprint, shared_by_ranks

LOGITS_AT_ONCE = 2**25  # elements that exist at a time where a vocabulary is large (scoring.py): 128 MiB of float32


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
        for key, known in (
            ("schedule", ("constant", "linear", "cosine")),
            ("name", ("adamw", "sgd")),
            ("nonfinite", ("stop", "skip")),
        ):
            if getattr(self, key) not in known:
                faults.append(Fault(key, f"'{getattr(self, key)}' is unknown", f"write {' or '.join(known)}"))
        for key in ("warmup_fraction", "final_fraction"):
            if not 0.0 <= getattr(self, key) <= 1.0:
                faults.append(Fault(key, f"is {getattr(self, key)}", "write a share between 0 and 1"))
        for key in ("weight_decay", "max_grad_norm", "max_skipped_steps"):
            if getattr(self, key) < 0:
                faults.append(Fault(key, f"is {getattr(self, key)}", "write 0 or more"))
        for key in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, key) < 1.0:
                faults.append(Fault(key, f"is {getattr(self, key)}", "write a share from 0 to below 1"))
        return faults


@dataclass
class LoRAConfig:
    """Low-rank adapters (arXiv:2106.09685). rank=0 trains all parameters."""

    rank: int = 0
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: list[str] = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"])
    merge: bool = True  # the output is merged weights; false: an adapter beside its base

    def faults(self) -> list[Fault]:
        faults = []
        if self.rank < 0:
            faults.append(Fault("rank", f"is {self.rank}", "write 0 (all parameters) or a positive rank"))
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            faults.append(Fault("alpha", f"is {self.alpha}", "write a positive number, 32"))
        if not 0 <= self.dropout < 1:
            faults.append(Fault("dropout", f"is {self.dropout}", "write a share from 0 to below 1"))
        if self.rank and not self.target_modules:
            faults.append(Fault("target_modules", "is empty: there is nothing to adapt", "write [q_proj,v_proj]"))
        return faults


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
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            faults.append(Fault("learning_rate", f"is {self.learning_rate}", "write a positive rate, 1e-6"))
        if self.tokens_per_microbatch < 1:
            faults.append(
                Fault("tokens_per_microbatch", f"is {self.tokens_per_microbatch}", "write a positive number, 16384")
            )
        if self.dtype not in ("auto", "float32", "bfloat16"):
            faults.append(Fault("dtype", f"'{self.dtype}' is unknown", "write auto, float32 or bfloat16"))
        for name, part in (("optimizer", self.optimizer), ("lora", self.lora)):
            faults += [Fault(f"{name}.{fault.key}", fault.problem, fault.remedy) for fault in part.faults()]
        return faults


@dataclass
class SupervisedStageConfig(TrainedStageConfig):
    """What every kind that learns from conversations has; only assistant tokens carry loss."""

    examples_per_step: int = shared_by_ranks(64)  # conversations that one optimizer step sees
    general_fraction: float = 0.25  # share of them that comes from `general`, where that port is wired
    max_tokens: int = 512  # of one conversation
    over_length: str = "drop"  # drop | split | error; never cut, which would teach not to stop
    packing: bool = False  # several conversations a row, attention kept apart
    modes: bool = False  # teaches both thinking modes: the chat template must express them, and is kept with the model

    def faults(self) -> list[Fault]:
        faults = super().faults()
        if self.examples_per_step < 1:
            faults.append(Fault("examples_per_step", f"is {self.examples_per_step}", "write a positive number, 64"))
        if not 0.0 <= self.general_fraction < 1.0:
            faults.append(Fault("general_fraction", f"is {self.general_fraction}", "write a share from 0 to below 1"))
        if self.max_tokens < 2:
            faults.append(Fault("max_tokens", f"is {self.max_tokens}", "write at least 2, 512"))
        if self.over_length not in ("drop", "split", "error"):
            faults.append(Fault("over_length", f"'{self.over_length}' is unknown", "write drop, split or error"))
        return faults
