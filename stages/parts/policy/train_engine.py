"""The life of a policy in training: score, backward, step, hand out weights, save and load.

Two engines stand behind one protocol: plain torch (one process, or data-parallel with summed gradients) and DeepSpeed
ZeRO. Differs from the textbook: nobody averages. A loss is a local sum that was divided by *global* counts, gradients
are summed over micro-batches and ranks, and so the update does not depend on how the batch was cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.artifacts import StageFailed
from pipeline.tracking import Context
from stages.parts.policy import state_files
from stages.parts.policy.batch import TokenBatch
from stages.parts.policy.config import OptimizerConfig, TrainedStageConfig
from stages.parts.policy.distributed import any_rank, world
from stages.parts.policy.model import Policy
from stages.parts.policy.optimizer import Update, parameter_groups
from stages.parts.policy.scoring import LOGITS_AT_ONCE, Compare, Scorer, TokenStats


@dataclass
class StepResult:
    grad_norm: float  # global L2 norm before clipping
    skipped: bool  # not finite: nothing was changed (optimizer.nonfinite=skip)


class TrainEngine(Protocol):
    """What a stage that updates weights holds. Every method is called by all ranks together."""

    policy: Policy
    sharded: bool  # the model's parameters are in pieces: sample from full_state(), never from policy.model

    def logps(
        self,
        batch: TokenBatch,
        temperature: float = 1.0,
        entropy: bool = False,
        logits_at_once: int = LOGITS_AT_ONCE,
        compare: Compare | None = None,
        reads: tuple[str, ...] = ("logps",),
    ) -> TokenStats:
        """Log-probs of the batch's tokens where mask_BT is not 0; with a graph unless under torch.no_grad(). `compare`
        sees the whole distribution of each of them (compared_BT). `reads`:
        what of it a loss reads (logps, entropy); the rest has no graph."""

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a local sum with global denominators. Once a micro-batch, as often on every rank."""

    def step(self, learning_rate: float) -> StepResult:
        """One optimizer step on what was added since the last one."""

    def full_state(self, merge: bool = True) -> dict[str, Tensor]:
        """Consolidated weights on every rank (ZeRO-3 gathers), HF names, the model's dtype; detached, and where nothing
        is gathered views of the live weights: copy what must outlive a step. Adapters are merged into their base
        weights, or (merge=False) stay apart under peft's names."""

    def save(self, folder: Path) -> None:
        """This rank's share of weights and optimizer state, in a form that any engine and any number of ranks loads."""

    def load(self, folder: Path) -> None: ...

    def gradients(self) -> dict[str, Tensor]:
        """The last step's gradients by parameter, for checks; needs an engine built with records=True."""


class TorchEngine:
    """float32 parameters are their own master weights; bfloat16 ones get a float32 master copy, into which every
    micro-batch's gradient is added at once."""

    def __init__(self, policy: Policy, cfg: TrainedStageConfig, records: bool = False) -> None:
        prepare_model(policy, cfg)
        self.policy, self.cfg, self.sharded = policy, cfg, False
        self.scorer = Scorer(policy.model)
        self.names = [name for name, param in policy.model.named_parameters() if param.requires_grad]
        self.params = [param for param in policy.model.parameters() if param.requires_grad]
        self.masters = [param if param.dtype == torch.float32 else master_copy(param) for param in self.params]
        named = list(zip(self.names, self.masters, strict=True))
        self.optimizer = Update(parameter_groups(named, cfg.optimizer), cfg.optimizer, clips=True, records=records)
        self.guard = Guard(cfg.optimizer)

    def logps(
        self,
        batch: TokenBatch,
        temperature: float = 1.0,
        entropy: bool = False,
        logits_at_once: int = LOGITS_AT_ONCE,
        compare: Compare | None = None,
        reads: tuple[str, ...] = ("logps",),
    ) -> TokenStats:
        with out_of_memory_names_knob(self.cfg):
            train_mode(self.policy.model, self.cfg)
            return TokenStats(*self.scorer(batch, temperature, entropy, logits_at_once, compare, reads=reads))

    def backward(self, loss: Tensor) -> None:
        with out_of_memory_names_knob(self.cfg):
            loss.backward()
        self.guard.saw(loss)

    def step(self, learning_rate: float) -> StepResult:
        self.optimizer.refused = not self.guard.before_step()
        if world()[1] > 1:
            sum_gradients(self.masters)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        if not self.optimizer.skipped:
            self.optimizer.updates += 1
            with torch.no_grad():
                for param, master in zip(self.params, self.masters, strict=True):
                    if param is not master:
                        param.copy_(master)
        for master in self.masters:
            master.grad = None
        return self.guard.after_step(self.optimizer.grad_norm, self.optimizer.skipped)

    def full_state(self, merge: bool = True) -> dict[str, Tensor]:
        state = dict(self.policy.model.state_dict())
        return whole_model(self.policy.model, state) if merge else state

    def save(self, folder: Path) -> None:
        if world()[0] == 0:  # replicated: one rank writes
            tensors = {f"param/{name}": master for name, master in zip(self.names, self.masters, strict=True)}
            for name, master in zip(self.names, self.masters, strict=True):
                moments = self.optimizer.state.get(master, {})
                tensors |= {f"{key}/{name}": moments[key] for key in ("exp_avg", "exp_avg_sq") if key in moments}
            state_files.write(folder, 0, tensors, self.optimizer.updates, self.guard.skipped)

    def load(self, folder: Path) -> None:
        tensors, self.optimizer.updates, self.guard.skipped = state_files.read(folder)
        with torch.no_grad():
            for name, param, master in zip(self.names, self.params, self.masters, strict=True):
                master.copy_(tensors.pop(f"param/{name}"))
                if param is not master:
                    param.copy_(master)
                for key in ("exp_avg", "exp_avg_sq"):
                    if f"{key}/{name}" in tensors:
                        self.optimizer.state[master][key] = tensors.pop(f"{key}/{name}").to(master.device)
        state_files.nothing_left(tensors, folder)

    def gradients(self) -> dict[str, Tensor]:
        states = self.optimizer.state
        return {name: states[master]["gradient"].clone() for name, master in zip(self.names, self.masters, strict=True)}


def build_engine(policy: Policy, cfg: TrainedStageConfig, context: Context, records: bool = False) -> TrainEngine:
    """The engine that cfg.engine names, around `policy` (which it changes: adapters, gradient checkpointing)."""
    if cfg.engine.kind == "deepspeed":
        from stages.parts.policy.deepspeed_engine import DeepSpeedEngine  # three seconds of import

        return DeepSpeedEngine(policy, cfg, records)
    if cfg.engine.kind == "torch":
        return TorchEngine(policy, cfg, records)
    raise StageFailed(f"engine.kind={cfg.engine.kind}: write torch or deepspeed")


class Guard:
    """Counts steps that were not finite, and stops where they are not allowed or too many."""

    def __init__(self, cfg: OptimizerConfig) -> None:
        self.cfg = cfg
        self.skipped = 0
        self.finite = True  # the loss of the step at hand
        self.loss: Tensor | None = None  # summed over micro-batches; None: no backward since the last step

    def saw(self, loss: Tensor) -> None:
        self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()

    def before_step(self) -> bool:
        """Whether the loss is finite on every rank. Where it is not its gradient may be, and must not be applied."""
        if self.loss is None:
            raise RuntimeError("step() without backward(): a step with nothing in it must be left out, not taken")
        self.finite = not any_rank(not torch.isfinite(self.loss))
        self.loss = None
        return self.finite

    def after_step(self, grad_norm: float, skipped: bool) -> StepResult:
        """`skipped`: the step changed nothing, as all ranks know."""
        if not skipped:
            return StepResult(grad_norm, False)
        what = "gradient" if self.finite else "loss"
        if self.cfg.nonfinite == "stop":
            raise StageFailed(
                f"a {what} is not finite; the last checkpoint is good. Lower learning_rate, or optimizer.nonfinite=skip"
            )
        self.skipped += 1
        if self.skipped > self.cfg.max_skipped_steps:
            raise StageFailed(
                f"{self.skipped} steps were not finite (optimizer.max_skipped_steps={self.cfg.max_skipped_steps}); "
                "lower learning_rate"
            )
        return StepResult(math.nan, True)


def prepare_model(policy: Policy, cfg: TrainedStageConfig) -> None:
    """Adapters and gradient checkpointing, before any engine takes the parameters."""
    if cfg.lora.rank > 0:
        from stages.parts.policy.lora import add_lora  # peft is an extra

        policy.model = add_lora(policy.model, cfg.lora)
    if cfg.engine.gradient_checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        policy.model.enable_input_require_grads()


def whole_model(model: torch.nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """`state` under HF names, adapters merged."""
    if not hasattr(model, "peft_config"):
        return state
    from stages.parts.policy.lora import merged_state

    return merged_state(model, state)


def train_mode(model: torch.nn.Module, cfg: TrainedStageConfig) -> None:
    """Train mode only where it means something (adapter dropout, checkpointing) and only for passes with a graph."""
    training = torch.is_grad_enabled() and (cfg.engine.gradient_checkpointing or cfg.lora.dropout > 0)
    if model.training != training:
        model.train(training)


def master_copy(param: torch.nn.Parameter) -> Tensor:
    """A float32 master of a low-precision parameter; gradients go to it as soon as they are there."""
    master = param.detach().float().clone()

    def move(low: Tensor) -> None:
        master.grad = low.grad.float() if master.grad is None else master.grad.add_(low.grad)
        low.grad = None

    param.register_post_accumulate_grad_hook(move)
    return master


def sum_gradients(params: list[Tensor]) -> None:
    """Sum over ranks, in one message."""
    for param in params:
        if param.grad is None:
            param.grad = torch.zeros_like(param)
    flat = torch.cat([param.grad.reshape(-1) for param in params])
    dist.all_reduce(flat)
    for param, part in zip(params, flat.split([param.numel() for param in params]), strict=True):
        param.grad.copy_(part.view_as(param))


class out_of_memory_names_knob:
    """Turns an out-of-memory error into a line that names the knob to turn."""

    def __init__(self, cfg: TrainedStageConfig) -> None:
        self.cfg = cfg

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
            raise StageFailed(
                f"out of memory with tokens_per_microbatch={self.cfg.tokens_per_microbatch}: halve it (the result stays"
                " the same), or engine.gradient_checkpointing=true, or engine=zero3"
            ) from error
