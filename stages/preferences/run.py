"""`preferences`: make pairs by rules, or read them, and write them in splits that share no prompt."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context, Metrics
from stages.parts.data.checks import first_rows
from stages.parts.data.columns import resolve_columns
from stages.parts.data.contrasts import pairs_of
from stages.parts.data.pairs import Pair, save_pairs
from stages.parts.data.problems import load_problems
from stages.parts.data.sources import cut_sizes
from stages.parts.data.splits import normalise
from stages.parts.data.tasks import stable_int
from stages.preferences.checks import GUESSES, read_pair
from stages.preferences.config import PreferencesConfig

SHOWN = 8  # pairs in samples.jsonl


def run(cfg: PreferencesConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Everything is a function of the configuration and the inputs; ranks other than 0 have nothing to do."""
    if cfg.source == "jsonl":
        splits = file_pairs(cfg, context)
    else:
        splits = embedded_pairs(cfg, inputs["problems"].path)
    check_disjoint(splits)
    if not splits["train"]:
        raise StageFailed("there is no training pair: nothing would be learned")
    if context.is_main:
        save_pairs(context.output("preferences"), splits)
    counts = {split: len(pairs) for split, pairs in splits.items()}
    axes = sorted({pair.axis for pairs in splits.values() for pair in pairs})
    context.declare("preferences", pairs=counts, axes=axes)
    context.samples(0, [_shown(pair) for pair in _one_a_reason(splits["train"])[:SHOWN]])
    reasons = Counter(f"{pair.axis}/{pair.reason or 'any'}" for pair in splits["train"])
    metrics = {f"pairs/{split}": float(count) for split, count in counts.items()}
    return metrics | {f"pairs/{name}": float(count) for name, count in sorted(reasons.items())}


def embedded_pairs(cfg: PreferencesConfig, problems: Path) -> dict[str, list[Pair]]:
    """Pairs for the open problems of each split, the suites in turn, so that a limit cuts all of them alike."""
    splits = {}
    for split, limit in cfg.sizes().items():
        suites = [
            [pair for problem in load_problems(problems, split, [suite])
             for pair in pairs_of(problem, cfg.pairs_per_problem, cfg.seed)]
            for suite in cfg.suites
        ]  # fmt: skip
        places = sorted(
            (place / len(pairs), index, place) for index, pairs in enumerate(suites) for place in range(len(pairs))
        )
        splits[split] = [suites[index][place] for _, index, place in places[:limit]]
    return splits


def file_pairs(cfg: PreferencesConfig, context: Context) -> dict[str, list[Pair]]:
    """Split by prompt, in the order of hashes: a prompt with several pairs stays on one side."""
    assert cfg.path is not None
    rows = list(first_rows(Path(cfg.path), None).values())
    columns = resolve_columns(sorted({name for row in rows for name in row}), cfg.columns, GUESSES)
    by_prompt: dict[str, list[Pair]] = {}
    for row in rows:
        if (pair := read_pair(row, columns, cfg.axis)) is not None:
            by_prompt.setdefault(pair.problem_id, []).append(pair)
    if len(by_prompt) < 3:
        raise StageFailed(f"'{cfg.path}' holds {len(by_prompt)} distinct prompts with pairs; three splits need three")
    order = sorted(by_prompt, key=lambda prompt: (stable_int(f"order/{cfg.seed}/{prompt}"), prompt))
    counts = cut_sizes(len(order), cfg.sizes())
    usable = sum(map(len, by_prompt.values()))
    context.note(f"{len(rows)} rows, {usable} of them pairs, {len(order)} distinct prompts")
    splits: dict[str, list[Pair]] = {}
    for split in ("test", "dev", "train"):
        prompts, order = order[: counts[split]], order[counts[split] :]
        splits[split] = [pair for prompt in prompts for pair in by_prompt[prompt]][: cfg.sizes()[split]]
    return splits


def check_disjoint(splits: dict[str, list[Pair]]) -> None:
    """Raises StageFailed where a prompt stands in two splits."""
    seen: dict[str, str] = {}
    for split, pairs in splits.items():
        for pair in pairs:
            prompt = normalise(pair.messages[-1]["content"])
            if seen.setdefault(prompt, split) != split:
                raise StageFailed(f"'{prompt}' is both in {seen[prompt]} and in {split}: held-out data leaks")


def _one_a_reason(pairs: list[Pair]) -> list[Pair]:
    return list({(pair.axis, pair.reason): pair for pair in reversed(pairs)}.values())[::-1]


def _shown(pair: Pair) -> dict[str, object]:
    prompt = pair.messages[-1]["content"]
    response = f"chosen: {pair.chosen}\nrejected: {pair.rejected}"
    return {"prompt": prompt, "response": response, "axis": pair.axis, "verdict": pair.reason or "any"}
