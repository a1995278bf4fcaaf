"""What does the loss see? The tokens of a stage's first step, coloured by mask, weight and advantage, and a verdict.

    python scripts/audit.py --stage cold_start pipeline=r1_style
    python scripts/audit.py --stage reasoning_rl --rows 8 pipeline=r1_style experiment=smoke

Ordinary flags first, then the overrides of run.py. What the stage needs is taken from the store, or run first. Grey:
outside the loss. Green: made likelier; red: made less likely (a negative advantage); yellow: a weight, but an advantage
of 0. The brighter, the larger weight x |advantage|. Without a terminal the loss stands between ⟦+ (or ⟦-, ⟦0) and ⟧.
Exit 1 where training could not learn what it should, 2 where there is nothing to look at.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.artifacts import StageFailed
from pipeline.ask.script import run_script
from pipeline.messages import Refused
from pipeline.prepare import Prepared, prepare
from stages.parts.data.audit import Audit, Row, audit

COLOURS = {"": (110, 110, 110), "+": (60, 220, 90), "-": (240, 80, 80), "0": (220, 200, 60)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--stage", required=True, help="a stage that trains: cold_start, reasoning_rl, ...")
    parser.add_argument("--rows", type=int, default=4, help="rows to show; all rows of the first step are checked")
    parser.add_argument("overrides", nargs="*", help="as for run.py")
    args = parser.parse_args()
    try:
        prepared = prepare(args.stage, args.overrides)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 2
    if prepared.stage.kind not in READERS:
        print(
            f"--stage {args.stage}: kind {prepared.stage.kind} has no token loss to look at; one of the kinds "
            f"{', '.join(READERS)} has",
            file=sys.stderr,
        )
        return 2
    try:
        rows, reduction, tokenizer, end_ids = READERS[prepared.stage.kind](prepared)
    except StageFailed as reason:  # as the stage would, before its first step
        print(f"{args.stage}: {reason}", file=sys.stderr)
        return 1
    pieces = getattr(prepared.stage.cfg, "over_length", "") == "split"
    result = audit(rows, tokenizer, end_ids, pieces=pieces)
    console = Console(highlight=False, soft_wrap=True)
    show_rows(console, rows, token_weights_of(rows, reduction, prepared.stage.cfg), tokenizer, args.rows)
    show_verdict(console, args.stage, result, rows)
    return 1 if result.faults else 0


def supervised_rows(prepared: Prepared) -> tuple[list[Row], str, Any, set[int]]:
    """The first optimizer step of an sft or distill stage."""
    from transformers import AutoTokenizer

    from stages.parts.data.conversations import load_conversations
    from stages.parts.policy.examples import encode_source, examples_of_step, shares
    from stages.parts.policy.facts import trusted

    cfg: Any = prepared.stage.cfg
    model = prepared.inputs.get("policy") or prepared.inputs["student"]
    tokenizer = AutoTokenizer.from_pretrained(model.path, trust_remote_code=trusted(model.path))
    sources = [
        encode_source(port, load_conversations(prepared.inputs[port].path), tokenizer, cfg.max_tokens, cfg.over_length)
        for port in ("data", "general")
        if port in prepared.inputs
    ]
    per_step = shares(cfg.examples_per_step, cfg.general_fraction, sources)
    rows = [Row(one.ids, one.mask) for one in examples_of_step(sources, per_step, cfg.seed, 0)]
    return rows, "token_mean", tokenizer, set(model.facts["end_tokens"])


def rollout_rows(prepared: Prepared) -> tuple[list[Row], str, Any, set[int]]:
    """The first mini-batch of an rl or ppo stage, sampled and scored as the stage would (on one rank)."""
    from pipeline.tracking import Context
    from stages.parts.data.problems import load_problems
    from stages.parts.experience.collect import collect
    from stages.parts.experience.first_step import audit_rows
    from stages.parts.policy.judge import load_judge
    from stages.parts.policy.model import load_policy
    from stages.parts.rollouts.engine import transformers_engine

    stage: Any = prepared.stage.cfg
    algorithm = replace(stage.algorithm, beta=0.0)  # no reference is loaded to look at rewards
    cfg = replace(stage, updates_per_rollout=1, algorithm=algorithm)
    policy = load_policy(prepared.inputs["policy"].path, cfg.dtype)
    problems, preferred = prepared.inputs["problems"].path, prepared.inputs.get("reward_model")
    judge = load_judge(preferred.path, cfg) if preferred is not None else None
    pools = {suite: load_problems(problems, "train", [suite]) for suite in cfg.suites}
    context = Context(prepared.stage.name, Path("/nonexistent"), cfg.seed, rank=0)
    if prepared.stage.kind == "ppo":
        from stages.ppo.update import assign_advantages

        experience = collect(transformers_engine(policy), policy, pools, {}, cfg, context, 0, judge=judge)
        for row in experience.rows:
            row.old_values = [0.0] * len(row.rollout.response_ids)  # a fresh critic expects nothing
        assign_advantages(experience, cfg)
    else:
        from stages.rl import update

        experience = collect(
            transformers_engine(policy), policy, pools, {}, cfg, context, 0, update.resample_rounds(cfg), judge
        )
        update.assign_advantages(experience, policy, cfg)
    return audit_rows(experience.rows), algorithm.reduction, policy.tokenizer, set(policy.end_ids)


READERS = {"sft": supervised_rows, "distill": supervised_rows, "rl": rollout_rows, "ppo": rollout_rows}


def token_weights_of(rows: list[Row], reduction: str, cfg: Any) -> list[list[float]]:
    """Weight of each token in the loss of this step."""
    import torch

    from stages.parts.losses.counts import count_batch
    from stages.parts.losses.reductions import token_weights

    mask_BT = torch.zeros(len(rows), max(len(row.ids) for row in rows))
    for place, row in enumerate(rows):
        mask_BT[place, row.learns] = 1.0
    limit = getattr(cfg, "max_response_tokens", mask_BT.shape[1])
    weights_BT = token_weights(reduction, mask_BT, count_batch(mask_BT, limit))
    return [weights_BT[place, : len(row.ids)].tolist() for place, row in enumerate(rows)]


def show_rows(console: Console, rows: list[Row], weights: list[list[float]], tokenizer: Any, shown: int) -> None:
    pushes = [
        [weight * abs(1.0 if row.advantages is None else row.advantages[t]) for t, weight in enumerate(row_weights)]
        for row, row_weights in zip(rows, weights, strict=True)
    ]
    strongest = max((push for row in pushes for push in row), default=0.0) or 1.0
    for place in telling(rows, weights, shown):
        row = rows[place]
        learns = row.learns
        advantage = "" if row.advantages is None or not learns else f", advantage {row.advantages[learns[-1]]:+.3f}"
        weight = weights[place][learns[-1]] if learns else 0.0
        cut = ", truncated" if row.truncated else ""
        label = f", {row.label}" if row.label else ""
        console.print(
            f"[bold]row {place}[/bold]: {len(row.ids)} tokens, {len(learns)} in the loss, weight {weight:.2e}"
            f"{advantage}{cut}{label}"
        )
        text = Text()
        previous = ""
        for t, token in enumerate(row.ids):
            sign = sign_of(row, t, weights[place][t])
            if not console.is_terminal and sign != previous:
                text.append(("⟧" if previous else "") + (f"⟦{sign}" if sign else ""))
            previous = sign
            light = 0.55 + 0.45 * pushes[place][t] / strongest
            text.append(tokenizer.decode([token]), style=shade(COLOURS[sign], light if sign else 1.0))
        console.print(text + ("⟧" if previous and not console.is_terminal else ""), "\n")


def telling(rows: list[Row], weights: list[list[float]], shown: int) -> list[int]:
    """Which rows to show: by turns one that is pushed up, one down, one not at all; a group's rows are often alike."""
    kinds: dict[str, list[int]] = {sign: [] for sign in ("+", "-", "0", "")}
    for place, row in enumerate(rows):
        kinds[sign_of(row, row.learns[-1], weights[place][row.learns[-1]]) if row.learns else ""].append(place)
    turns = itertools.zip_longest(*kinds.values())
    return sorted([place for turn in turns for place in turn if place is not None][:shown])


def sign_of(row: Row, t: int, weight: float) -> str:
    """ "Empty outside the loss; else which way the token is pushed."""
    if weight == 0.0:
        return ""
    advantage = 1.0 if row.advantages is None else row.advantages[t]
    return "+" if advantage > 0 else "-" if advantage < 0 else "0"


def shade(colour: tuple[int, int, int], light: float) -> str:
    return "rgb({},{},{})".format(*(int(channel * light) for channel in colour))


def show_verdict(console: Console, stage: str, result: Audit, rows: list[Row]) -> None:
    lines = [
        f"{stage}: {result.rows} rows of the first step, {result.tokens} tokens",
        f"  in the loss         {result.supervised} tokens, {result.supervised / max(result.tokens, 1):.1%}",
        f"  end token in it     {result.ended} of {result.rows} rows",
        f"  truncated or cut    {result.cut}",
        f"  BOS                 {result.doubled_bos} doubled, {result.without_bos} without",
        f"  think block         {result.thinking} whole, {result.broken_thinking} broken",
    ]
    console.print("\n".join(lines))
    for note in result.notes:
        console.print(f"  note: {note}", style="yellow")
    for fault in result.faults:
        console.print(f"  FAULT: {fault}", style="bold red")
    console.print("  verdict: " + ("could not learn what it should" if result.faults else "ok"))


if __name__ == "__main__":
    run_script(main)
