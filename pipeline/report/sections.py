"""The sections of a run's report in their order, and the short ones: headline, ledger, responses, lineage."""

from __future__ import annotations

from typing import Any

from pipeline.report.capability import behaviours, capability
from pipeline.report.chain import chain
from pipeline.report.critic import critic
from pipeline.report.curves import curves
from pipeline.report.distillation import distillation
from pipeline.report.emergence import emergence, length_bias, questions
from pipeline.report.load import RunView, StageView
from pipeline.report.modes import budgets, modes
from pipeline.report.page import block, chip, count, details, duration, number, percent, section, table, text
from pipeline.report.preferences import preferences
from pipeline.report.siblings import siblings

SIDE_BY_SIDE_PROBLEMS = 2  # a suite
SAMPLES_A_STAGE = 4


def all_sections(run: RunView) -> str:
    return "".join([
        headline(run),
        section("The chain", chain(run), "Each stage reads what the lines lead to: solid a model, dashed data."),
        capability(run),
        modes(run),
        budgets(run),
        critic(run),
        distillation(run),
        siblings(run),
        preferences(run),
        emergence(run),
        questions(run),
        length_bias(run),
        curves(run),
        behaviours(run),
        section("Rejection sampling", ledgers(run), "What was sampled, what was kept, and why the rest was not."),
        section(
            "The same problems, model by model",
            side_by_side(run),
            "Held-out problems that nobody trained on, and the first response of each model to them.",
        ),
        section("Responses seen in training", samples(run)),
        section("Lineage", lineage(run), "What each result was made from; equal fingerprints mean equal recipes."),
    ])  # fmt: skip


def headline(run: RunView) -> str:
    counts: dict[str, int] = {}
    for stage in run.stages:
        counts[stage.status] = counts.get(stage.status, 0) + 1
    tally = ", ".join(f"{n} {status}" for status, n in counts.items())
    messages = {stage.name: stage.error for stage in run.stages if stage.status == "failed"}
    if run.error:
        messages = {run.error.get("stage", ""): run.error.get("message", "")} | messages
    failed = "".join(
        f'<div class="failure"><b>{text(name)}</b>{block(message or "failed; see console.log")}</div>'
        for name, message in messages.items()
    )
    warnings = "".join(f"<li>{text(warning)}</li>" for warning in run.warnings)
    return (
        f'<header>\n<p class="recipe">recipe {text(run.pipeline)}</p>\n<h1>{text(run.name)} {chip(run.status)}</h1>\n'
        f'<p class="facts"><b>{duration(run.seconds)}</b> in all, {duration(run.overhead_seconds)} of it outside stages'
        f' · {text(tally)}</p>\n<pre class="command">{text(run.command)}</pre>\n{failed}'
        f"{f'<ul class=warnings>{warnings}</ul>' if warnings else ''}</header>\n"
    )


def ledgers(run: RunView) -> str:
    """Every stage that keeps a ledger: what was sampled, kept, and dropped by reason, as bars."""
    parts = []
    for stage in run.main_stages:
        ledger = {
            key.removeprefix("ledger/"): value for key, value in stage.metrics.items() if key.startswith("ledger/")
        }
        sampled = ledger.pop("sampled", None)
        if not sampled:
            continue
        problems, kept_problems = ledger.pop("problems", None), ledger.pop("problems_kept", None)
        rows = "".join(
            f'<li><span class="name">{text(name.replace("_", " "))}</span>'
            f'<span class="bar"><i style="width:{100 * value / sampled:.2f}%"></i></span>'
            f'<span class="value">{count(value)} <small>{percent(value / sampled)}%</small></span></li>'
            for name, value in ledger.items()
            if value and not name.endswith("_share")
        )
        told = (
            f"{count(sampled)} responses to {number(problems)} problems; kept some for {number(kept_problems)} of them"
        )
        parts.append(f'<h3>{text(stage.name)}</h3><p class="note">{told}</p><ul class="bars">{rows}</ul>')
    return "".join(parts)


def side_by_side(run: RunView) -> str:
    """A few held-out problems, each with the first response of every evaluated model."""
    models = [stage.name for stage in run.main_stages if run.evaluation(stage.name)]
    if not models:
        return ""
    wanted = _telling_problems(run, models)
    prompts: dict[str, str] = {}
    answers: dict[str, list[tuple[str, dict[str, Any]]]] = {key: [] for key in wanted}
    for name in models:
        evaluation = run.by_name[f"{name}.eval"]
        for row in evaluation.responses():
            if row["problem_id"] in answers and row["sample_index"] == 0:
                prompts[row["problem_id"]] = row["prompt"]
                answers[row["problem_id"]].append((name, row))
    parts = []
    for key, found in answers.items():
        cells = "".join(
            f'<div class="answer"><h4>{text(name)} {_verdict(row)}</h4>{block(row["text"], 1200)}</div>'
            for name, row in found
        )
        if found:
            prompt = f'<div class="prompt">{block(prompts[key], 800)}</div>'
            parts.append(f'<article>{prompt}<div class="answers">{cells}</div></article>')
    return "".join(parts)


def _telling_problems(run: RunView, models: list[str]) -> list[str]:
    """Of each suite, the problems on which the models differ most: where there is something to see."""
    rates: dict[str, dict[str, list[float]]] = {}
    for name in models:
        for row in run.by_name[f"{name}.eval"].results:
            rates.setdefault(row["suite"], {}).setdefault(row["problem_id"], []).append(row["c"] / max(row["n"], 1))
    chosen = []
    for problems in rates.values():
        order = sorted(problems, key=lambda key: (min(problems[key]) - max(problems[key]), key))
        chosen += order[:SIDE_BY_SIDE_PROBLEMS]
    return chosen


def _verdict(row: dict[str, Any]) -> str:
    if row.get("right") is None:
        return ""
    mark, said = ("✓", "right") if row["right"] else ("✗", "wrong")
    return f'<span class="verdict {said}">{mark} {said}</span>' + (
        " <small>cut off</small>" if row.get("truncated") else ""
    )


def samples(run: RunView) -> str:
    """Responses that each stage showed: one of the first step and a few of the last; or one a verdict."""
    parts = []
    for stage in run.main_stages:
        rows = stage.samples
        if not rows:
            continue
        last = [row for row in rows if row["step"] == rows[-1]["step"]]
        if "verdict" in rows[0]:
            shown = list({row["verdict"]: row for row in reversed(last)}.values())[::-1]
        else:
            shown = (rows[:1] if len(last) < len(rows) else []) + last[:SAMPLES_A_STAGE]
        body = "".join(_sample(row) for row in shown)
        parts.append(details(f"{text(stage.name)} <small>{len(shown)} of {len(rows)}</small>", body))
    return "".join(parts)


def _sample(row: dict[str, Any]) -> str:
    texts = {"prompt": row.get("prompt", ""), "response": row.get("response", row.get("text", ""))}
    facts = {
        key: value for key, value in row.items() if key not in ("prompt", "response", "text", "parts", "problem_id")
    }
    facts |= row.get("parts") or {}
    told = " · ".join(f"{text(key)} {_fact(value)}" for key, value in facts.items() if value not in (None, ""))
    return (
        f'<article class="sample"><p class="facts">{told}</p>'
        f'<div class="prompt">{block(texts["prompt"], 800)}</div>{block(texts["response"], 2000)}</article>'
    )


def _fact(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    return text(str(value)[:80])


def lineage(run: RunView) -> str:
    rows = []
    for stage in run.main_stages:
        made = stage.artifact
        if not made:
            continue
        git = made.get("git") or {}
        commit = f"{str(git.get('commit') or '–')[:10]}{' + changes' if git.get('dirty') else ''}"
        sources = ", ".join(f"{text(source.port)} ← {text(source.wired)}" for source in stage.sources) or "–"
        parameters = (made.get("outputs", {}).get("model") or {}).get("parameters")
        rows.append([
            text(stage.name),
            f"<code>{text(str(made.get('fingerprint', '–'))[:12])}</code>",
            sources,
            text(made.get("seed", "–")),
            count(parameters) if parameters else "–",
            f"{text(made.get('ranks', '–'))} × {text(made.get('threads', '–'))}",
            f"<code>{text(commit)}</code>",
            text(str(made.get("created", "–"))[:19].replace("T", " ")),
        ])  # fmt: skip
    head = ["stage", "fingerprint", "inputs", "seed", "parameters", "ranks × threads", "commit", "made"]
    return table(head, rows, "plain") + _surroundings(run.stages)


def _surroundings(stages: list[StageView]) -> str:
    """Hardware and packages, once each."""
    parts = []
    for key in ("hardware", "packages"):
        values: dict[str, list[str]] = {}
        for stage in stages:
            if found := stage.artifact.get(key):
                values.setdefault(_facts(found), []).append(stage.name)
        for value, names in values.items():
            where = "" if len(values) == 1 else f" <small>{text(', '.join(names))}</small>"
            parts.append(details(key + where, f"<p>{text(value)}</p>"))
    return "".join(parts)


def _facts(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_facts(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_facts(item) for item in value)
    return str(value)
