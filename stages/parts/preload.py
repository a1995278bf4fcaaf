"""Imported last by the fork server, so that a rank with a model finds everything loaded. It only imports.

transformers loads lazily: the classes are touched here, or every rank would pay for them. deepspeed is what it loads
when it saves a model, also where the engine is torch.
"""

from __future__ import annotations

import deepspeed  # noqa: F401
import safetensors.torch  # noqa: F401
import torch.distributed  # noqa: F401
import transformers.models.qwen3.modeling_qwen3  # noqa: F401
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast  # noqa: F401
