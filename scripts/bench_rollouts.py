"""How fast are responses sampled? The rollout engine against `model.generate`, in one process, on the same prompts.

    python scripts/bench_rollouts.py --threads 1 [--requests 512] [--samples 8] [--rows 512] [--model DIR]

Without --model a random Qwen3 of the demo's size. Both sample at temperature 1 with the same end tokens and limit;
generate() gets the requests in batches of --rows, left-padded, as its users do. Runs alternate and the best of each
counts, so that what else the machine does weighs on both. Tokens are response tokens that are kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from stages.parts.data.tokenizer import END_IDS, PAD_ID, VOCAB_SIZE, build_tokenizer
from stages.parts.policy.model import Policy, default_device, load_policy
from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.engine import transformers_engine
from stages.parts.rollouts.types import Request


def main() -> None:
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    policy = load_policy(args.model) if args.model else random_policy(args.end_tokens)
    requests = random_requests(policy, args.requests, args.samples)
    sampling = SamplingConfig(max_response_tokens=args.tokens)
    started = time.perf_counter()
    engine = transformers_engine(policy, args.rows)
    parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    print(f"{parameters:,} parameters on {policy.device}; {len(requests)} requests, {args.samples} a prompt")
    print(
        f"{args.rows} rows, {torch.get_num_threads()} threads of {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    print(f"engine ready in {time.perf_counter() - started:.2f} s with {type(engine.decoder).__name__}")
    best: dict[str, float] = {}
    for repeat in range(args.repeats):
        ways = {
            "engine": lambda: sum(len(r.response_ids) for r in engine.generate(requests, sampling, (0, "bench", 0))),
            "generate": lambda: generated_tokens(policy, requests, args.rows, args.tokens),
        }
        for name, way in ways.items():
            rate = measure(way)
            best[name] = max(best.get(name, 0.0), rate)
            print(f"  {repeat} {name:9} {rate:9,.0f} tokens/s")
    print(f"best: engine {best['engine']:,.0f}, generate {best['generate']:,.0f} tokens/s: "
          f"{best['engine'] / best['generate']:.1f} times as fast")  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--samples", type=int, default=8, help="responses a prompt")
    parser.add_argument("--rows", type=int, default=512, help="rows decoded at once")
    parser.add_argument("--tokens", type=int, default=96, help="limit of a response")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument(
        "--end-tokens", type=int, default=7, help="of the random model: more of them, shorter responses"
    )
    parser.add_argument("--model", type=Path, default=None)
    return parser.parse_args()


def random_policy(end_tokens: int) -> Policy:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, intermediate_size=384, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    device = default_device()
    ends = frozenset({*END_IDS, *range(end_tokens - len(END_IDS))})
    return Policy(Qwen3ForCausalLM(config).to(device).eval(), build_tokenizer(512), ends, PAD_ID, device)


def random_requests(policy: Policy, requests: int, samples: int) -> list[Request]:
    """Prompts of 20-60 ordinary tokens."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for group in range(-(-requests // samples)):
        length = int(torch.randint(20, 60, (1,), generator=generator))
        ids = torch.randint(10, min(250, len(policy.tokenizer)), (length,), generator=generator).tolist()
        made += [Request(f"p{group}", index, ids) for index in range(samples)]
    return made[:requests]


def generated_tokens(policy: Policy, requests: list[Request], rows: int, limit: int) -> int:
    """Response tokens up to the first end token, by transformers' own loop."""
    total = 0
    ends = torch.tensor(sorted(policy.end_ids), device=policy.device)
    for start in range(0, len(requests), rows):
        prompts = [request.prompt_ids for request in requests[start : start + rows]]
        width = max(map(len, prompts))
        ids = torch.tensor([[policy.pad_id] * (width - len(p)) + p for p in prompts], device=policy.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=policy.device)
        out = policy.model.generate(
            ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=limit,
            eos_token_id=sorted(policy.end_ids), pad_token_id=policy.pad_id,
        )[:, width:]  # fmt: skip
        ended = torch.isin(out, ends).cumsum(dim=1)
        total += int((ended.cumsum(dim=1) <= 1).sum())
    return total


def measure(way: Callable[[], int]) -> float:
    started = time.perf_counter()
    tokens = way()
    return tokens / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
