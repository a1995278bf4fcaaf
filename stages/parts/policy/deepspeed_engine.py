"""DeepSpeed ZeRO 0-3 (arXiv:1910.02054) behind the train-engine protocol.

Differs from the textbook:
- Gradients are summed. DeepSpeed averages over ranks in every stage, so the loss is multiplied by their number (a
  power of two costs no bit); its division by accumulation steps is off (scale_wrt_gas=False), and `step()` alone
  decides where a step ends (managed_gradient_accumulation=False): the number of micro-batches varies from step to step.
- The optimizer inside is ours (optimizer.py), so that ZeRO and plain torch do the same arithmetic.
- Checkpoints are whole tensors by name, gathered with DeepSpeed's `safe_get_full_*`, not its own files: another ZeRO
  stage or number of ranks reads them without conversion (OpenRLHF#891).
- A partitioned model is only ever called through the engine, never by `generate` or an evaluation (trl#2840, trl#3858).
"""

from __future__ import annotations

import copy
import os
import warnings
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)
from torch import Tensor

from pipeline.artifacts import StageFailed
from pipeline.config import zero_buffers, zero_stage
from stages.parts.policy import state_files
from stages.parts.policy.batch import TokenBatch
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.distributed import barrier, world
from stages.parts.policy.model import Policy
from stages.parts.policy.optimizer import MOMENTS, Update, parameter_groups
from stages.parts.policy.scoring import LOGITS_AT_ONCE, Compare, Scorer, TokenStats
from stages.parts.policy.train_engine import (
    Guard,
    StepResult,
    out_of_memory_names_knob,
    prepare_model,
    train_mode,
    whole_model,
)

deepspeed.utils.logger.setLevel("ERROR")  # its start-up says thirty lines a stage
warnings.filterwarnings("ignore", message="`torch.distributed", category=FutureWarning)  # DeepSpeed calls old names


def deepspeed_config(cfg: TrainedStageConfig, world_size: int, model: torch.nn.Module) -> dict[str, Any]:
    """DeepSpeed's JSON, all of it. Batch sizes in it count nothing here: micro-batches are made by tokens."""
    dtype = next(model.parameters()).dtype
    stage = zero_stage(cfg.engine, dtype == torch.bfloat16)
    hidden_size = model.config.get_text_config().hidden_size
    sizes = zero_buffers(hidden_size, sum(param.numel() for param in model.parameters()))
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False, **sizes}
    if cfg.engine.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "train_batch_size": world_size,
        "managed_gradient_accumulation": False,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        # Without ZeRO the optimizer sees whole gradients and clips them itself; see Update.
        "gradient_clipping": cfg.optimizer.max_grad_norm if stage > 0 else 0.0,
        "bf16": {"enabled": dtype == torch.bfloat16, "check_grad_overflow": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "steps_per_print": None,
    }


class DeepSpeedEngine:
    def __init__(self, policy: Policy, cfg: TrainedStageConfig, records: bool = False) -> None:
        prepare_model(policy, cfg)
        join_alone()
        self.policy, self.cfg = policy, cfg
        dtype = next(policy.model.parameters()).dtype
        self.stage = zero_stage(cfg.engine, dtype == torch.bfloat16)
        self.sharded = self.stage == 3
        if self.stage == 0 and dtype != torch.float32:
            raise StageFailed("engine.zero_stage=0 trains in float32 only: write engine=torch or engine=zero1")
        scorer = Scorer(policy.model)
        named = [(name, param) for name, param in policy.model.named_parameters() if param.requires_grad]
        groups = parameter_groups(named, cfg.optimizer)
        self.update = Update(groups, cfg.optimizer, clips=self.stage == 0, records=records)
        self.deepspeed, self.optimizer, _, _ = deepspeed.initialize(
            model=scorer, optimizer=self.update, config=deepspeed_config(cfg, world()[1], policy.model)
        )
        self.params = dict(named)
        self.guard = Guard(cfg.optimizer)
        self._create_states()

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
            return TokenStats(*self.deepspeed(batch, temperature, entropy, logits_at_once, compare, reads=reads))

    def backward(self, loss: Tensor) -> None:
        with out_of_memory_names_knob(self.cfg):
            self.deepspeed.backward(loss * world()[1], scale_wrt_gas=False)
        self.guard.saw(loss)

    def step(self, learning_rate: float) -> StepResult:
        self.update.refused = not self.guard.before_step()
        for group in self.update.param_groups:
            group["lr"] = learning_rate
        self.deepspeed.step()
        if self.stage == 0:
            norm, skipped = self.update.grad_norm, self.update.skipped
        else:
            norm = float(self.deepspeed.get_global_grad_norm())
            skipped = bool(self.optimizer.overflow) or self.update.refused
        if not skipped:
            self.update.updates += 1
        return self.guard.after_step(norm, skipped)

    def full_state(self, merge: bool = True) -> dict[str, Tensor]:
        seen: dict[int, Tensor] = {}
        state = {}
        for name, tensor in self.policy.model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen[id(tensor)] = self._whole(tensor)
            state[name] = seen[id(tensor)]
        return whole_model(self.policy.model, state) if merge else state

    def save(self, folder: Path) -> None:
        """Rank r keeps every n-th parameter, so that memory and writing are shared."""
        rank, size = world()
        tensors = {}
        for index, (name, param) in enumerate(self.params.items()):
            whole = {"param": param.detach() if self.stage == 0 else safe_get_full_fp32_param(param)}
            whole |= {moment: self._state(param, moment) for moment in self._moments()}
            if index % size == rank:
                tensors |= {f"{kind}/{name}": tensor.detach().cpu().clone() for kind, tensor in whole.items()}
        state_files.write(folder, rank, tensors, self.update.updates, self.guard.skipped)

    def load(self, folder: Path) -> None:
        tensors, self.update.updates, self.guard.skipped = state_files.read(folder)
        for name, param in self.params.items():
            value = tensors.pop(f"param/{name}").to(self.policy.device)
            self._set_param(param, value)
            for moment in self._moments():
                if f"{moment}/{name}" in tensors:
                    self._set_state(param, moment, tensors.pop(f"{moment}/{name}").to(self.policy.device))
        state_files.nothing_left(tensors, folder)
        barrier()

    def gradients(self) -> dict[str, Tensor]:
        return {name: self._state(param, "gradient").clone() for name, param in self.params.items()}

    def _moments(self) -> tuple[str, ...]:
        return MOMENTS[self.cfg.optimizer.name]

    def _create_states(self) -> None:
        """Moments exist from the start, so that a checkpoint can be loaded before the first step."""
        if self.stage == 3:
            flats = self.optimizer.fp32_partitioned_groups_flat
        elif self.stage > 0:
            flats = self.optimizer.single_partition_of_fp32_groups
        else:
            flats = list(self.params.values())
        self.update.create_states(flats)
        if self.stage in (1, 2):
            self.optimizer._lazy_init_hp_params_optimizer_state()

    def _whole(self, tensor: Tensor) -> Tensor:
        if not hasattr(tensor, "ds_id"):
            return tensor.detach()
        with deepspeed.zero.GatheredParameters([tensor]):
            return tensor.detach().clone()

    def _state(self, param: Tensor, key: str) -> Tensor:
        return self.update.state[param][key] if self.stage == 0 else safe_get_full_optimizer_state(param, key)

    def _set_state(self, param: Tensor, key: str, value: Tensor) -> None:
        if self.stage == 0:
            self.update.state[param][key].copy_(value)
        else:
            safe_set_full_optimizer_state(param, _padded(param, value), key)

    def _set_param(self, param: Tensor, value: Tensor) -> None:
        """The float32 master and the working copy."""
        if self.stage > 0:
            safe_set_full_fp32_param(param, _padded(param, value))
        gathered = [param] if self.sharded else []
        with torch.no_grad(), deepspeed.zero.GatheredParameters(gathered, modifier_rank=0, enabled=self.sharded):
            param.data.copy_(value)


class PartitionedReference:
    """A frozen model whose parameters are spread over the ranks (ZeRO-3 without an optimizer).

    A teacher's head stays whole on every rank: its logits are wanted a chunk at a time, in the middle of the student's
    forward pass, where nothing of the teacher is gathered."""

    def __init__(self, policy: Policy, cfg: TrainedStageConfig, is_teacher: bool = False) -> None:
        join_alone()
        self.policy = policy
        policy.model.requires_grad_(False)
        scorer = Scorer(policy.model)
        self.head = copy.deepcopy(scorer.head) if is_teacher and scorer.splits else None
        config = deepspeed_config(cfg, world()[1], policy.model)
        config["zero_optimization"].pop("offload_optimizer", None)
        del config["managed_gradient_accumulation"]
        self.deepspeed, *_ = deepspeed.initialize(model=scorer, config=config)
        self.deepspeed.eval()

    @torch.no_grad()
    def logps(self, batch: TokenBatch, temperature: float = 1.0) -> TokenStats:
        return TokenStats(*self.deepspeed(batch, temperature, False))

    @torch.no_grad()
    def before_head(self, batch: TokenBatch) -> Tensor:
        return self.deepspeed(batch, 1.0, False, before_head=True)[0]

    @torch.no_grad()
    def logits(self, hidden_CH: Tensor) -> Tensor:
        return hidden_CH if self.head is None else self.head(hidden_CH)

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        for name, param in self.policy.model.named_parameters():
            with deepspeed.zero.GatheredParameters([param], modifier_rank=0):
                param.data.copy_(state[name])


def join_alone() -> None:
    """DeepSpeed wants a process group even for one process: one over memory, without a port."""
    os.environ.setdefault("LOCAL_RANK", "0")
    # On a CPU DeepSpeed would first compile a shared-memory all-reduce: 100 s, a C++ compiler, and a lock file that a
    # killed rank leaves behind for all later ones to wait on. gloo does the same work.
    if not torch.cuda.is_available():
        deepspeed.ops.__compatible_ops__ = {}  # set, not changed: reading it would probe every op with the linker
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo", auto_mpi_discovery=False)


def _padded(param: Tensor, value: Tensor) -> Tensor:
    """ZeRO-3 narrows the value by whole partitions, so the last rank's must be there in full."""
    flat = value.flatten().float()
    if not hasattr(param, "ds_id"):
        return flat
    room = param.ds_tensor.ds_numel * world()[1]
    return torch.nn.functional.pad(flat, (0, room - flat.numel()))
