"""Ways to teach one student, side by side: what each reached, what it took, and what its teacher had to do for it.

A way is the chain of stages from the student's base to a trained model; its costs are those of the whole chain. The
teacher's part is counted: what it generated for the data, what it read to give its probabilities, and its time.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.report.load import RunView, StageView
from pipeline.report.page import count, duration, number, percent, section, signed, table, text
from pipeline.statistics import Estimate, estimate, paired_difference, pass_at_k

KINDS = ("sft", "distill", "on_policy_distill", "rl", "ppo")
NOTE = (
    "Models trained from the same student, each with the whole chain of stages behind it. Accuracy in percent on "
    "held-out problems, with 95% intervals. Time: of those stages; with the teacher: and of the stages in which it "
    "generated their data and stored its probabilities. Tokens: what the teacher generated, and what it read."
)
STORED = ("logits/bytes", "logits/share_of_full", "error/tail_mass", "error/divergence")
PUBLISHED = (
    "Qwen3 (arXiv:2505.09388, table 21) reports on-policy distillation ahead of RL at a tenth of its GPU hours, and "
    "pass@64 raised where RL left it; its teacher is not counted there."
)


@dataclass
class Way:
    """One trained model and how it came about."""

    stage: StageView
    chain: list[StageView]  # from the student's base, `stage` last
    helpers: list[StageView]  # in which a teacher worked for the chain: sampled its data, stored its probabilities

    @property
    def seconds(self) -> float:
        return sum(stage.computed_seconds for stage in self.chain)

    @property
    def seconds_with_teacher(self) -> float:
        return self.seconds + sum(stage.computed_seconds for stage in self.helpers)

    @property
    def generated(self) -> float | None:
        """Tokens; None where a result does not tell (it is older than the count)."""
        told = [stage.metrics.get("sampled/tokens") for stage in self.helpers if stage.kind == "sample"]
        return None if None in told else sum(value for value in told if value is not None)

    @property
    def read(self) -> float:
        return sum(stage.metrics.get("teacher/total_tokens") or 0.0 for stage in [*self.chain, *self.helpers])

    @property
    def needs_teacher(self) -> bool:
        return bool(self.helpers) or self.read > 0


def distillation(run: RunView) -> str:
    """Nothing unless a teacher's probabilities were learned from."""
    parts = []
    for student, ways in _by_student(run).items():
        if len(ways) > 1 and any(way.read for way in ways):
            table_of_ways = table(_head(run, ways), [_row(run, way, ways) for way in ways])
            parts.append(f'<h3>{text(student)}</h3><div class="ways">{table_of_ways}</div>{_verdict(run, ways)}')
            parts.append(_stored(ways) + _exposure(run, ways))
    return section("Ways to teach a student", "".join(parts), NOTE)


def _by_student(run: RunView) -> dict[str, list[Way]]:
    """Every trained model under the base model that it started from."""
    found: dict[str, list[Way]] = {}
    for stage in run.main_stages:
        chain = _chain(run, stage)
        if stage.kind in KINDS and stage.artifact and chain and chain[0].kind == "base_model":
            way = Way(stage, chain[1:], _helpers(run, chain[1:]))
            found.setdefault(chain[0].name, []).append(way)
    return found


def _chain(run: RunView, stage: StageView) -> list[StageView]:
    """The stage and what its model came from, the oldest first."""
    chain = [stage]
    while (before := chain[0].input_model) in run.by_name and before:
        chain.insert(0, run.by_name[before])
    return chain


def _helpers(run: RunView, chain: list[StageView]) -> list[StageView]:
    sources = [run.by_name[s.stage] for stage in chain for s in stage.sources if s.stage in run.by_name]
    return list({one.name: one for one in sources if one.kind in ("sample", "teacher_logits")}.values())


def _head(run: RunView, ways: list[Way]) -> list[str]:
    suites = _suites(run, ways)
    accuracies = [f"{text(suite)} {what}" for suite in suites for what in ("pass@1", f"pass@{_k(run, ways, suite)}")]
    return ["way", *accuracies, "time", "with the teacher", "generated", "read"]


def _row(run: RunView, way: Way, ways: list[Way]) -> list[str]:
    cells = [" → ".join(text(stage.name) for stage in way.chain) + f" <small>{text(way.stage.kind)}</small>"]
    for suite in _suites(run, ways):
        for k in (1, _k(run, ways, suite)):
            cells.append(_interval(estimate(list(rates.values()))) if (rates := _rates(run, way, suite, k)) else "–")
    generated = way.generated
    return [
        *cells,
        duration(way.seconds),
        duration(way.seconds_with_teacher) if way.needs_teacher else "–",
        ("–" if generated is None else count(generated)) if way.helpers else "0",
        count(way.read),
    ]


def _interval(found: Estimate) -> str:
    return f"<b>{percent(found.mean)}</b> <small>{percent(found.low)} – {percent(found.high)}</small>"


def _verdict(run: RunView, ways: list[Way]) -> str:
    """Each way against RL alone, where there is one; and what making the teacher took."""
    alone = next((way for way in ways if way.stage.kind == "rl" and not way.needs_teacher), None)
    told = [_against(run, way, alone, ways) for way in ways if alone is not None and way is not alone]
    items = "".join(f"<li>{item}</li>" for item in told if item)
    against = f"<p>Against RL alone ({text(alone.stage.name)}):</p><ul>{items}</ul>" if alone and items else ""
    published = f'<p class="note">{text(PUBLISHED)}</p>' if against else ""
    return against + _made(run, ways) + published


def _against(run: RunView, way: Way, alone: Way, ways: list[Way]) -> str:
    told = []
    for suite in _suites(run, ways):
        for k in (1, _k(run, ways, suite)):
            gap = paired_difference(_rates(run, way, suite, k), _rates(run, alone, suite, k))
            if gap is not None:
                interval = f"<small>{signed(gap.low)} … {signed(gap.high)}</small>"
                told.append(f"{text(suite)} pass@{k} <b>{signed(gap.mean)}</b> {interval}")
    if alone.seconds:
        time = f"{way.seconds / alone.seconds:.2f}× the time"
        if way.needs_teacher:
            time += f", {way.seconds_with_teacher / alone.seconds:.2f}× with the teacher"
        told.append(time)
    return f"{text(way.stage.name)}: {', '.join(told)}" if told else ""


def _made(run: RunView, ways: list[Way]) -> str:
    """What it took to make the teacher, which only the ways that need one pay for, once."""
    names = {
        source.stage
        for way in ways
        for stage in [*way.chain, *way.helpers]
        for source in stage.sources
        if source.is_model and source.stage not in [one.name for one in _chain(run, way.stage)]
    }
    parts = []
    for name in sorted(names & run.by_name.keys()):
        upstream = _upstream(run, run.by_name[name])
        seconds = sum(stage.computed_seconds for stage in upstream)
        made = ", ".join(text(stage.name) for stage in upstream)
        parts.append(f"<p>The teacher {text(name)} took <b>{duration(seconds)}</b> to make ({made}).</p>")
    return "".join(parts)


def _upstream(run: RunView, stage: StageView) -> list[StageView]:
    """The stage and all that it rests on, data and reward models too, in the order of the run."""
    found, left = {stage.name}, [stage]
    while left:
        before = {source.stage for source in left.pop().sources} & run.by_name.keys() - found
        found |= before
        left += [run.by_name[name] for name in before]
    return [one for one in run.main_stages if one.name in found]


def _stored(ways: list[Way]) -> str:
    """What storing a teacher's probabilities took and lost, against full logits."""
    told = []
    for stage in {one.name: one for way in ways for one in way.helpers if one.kind == "teacher_logits"}.values():
        kept = [value for name in STORED if (value := stage.metrics.get(name)) is not None]
        if len(kept) == len(STORED):
            size, share, mass, divergence = kept
            told.append(
                f"<p>{text(stage.name)} takes {size / 2**20:.2f} MiB, <b>{percent(share)}%</b> of full logits; what it "
                f"leaves out has {percent(mass, 2)}% of the probability, told within {number(divergence)} nats a "
                "token.</p>"
            )
    return "".join(told)


def _exposure(run: RunView, ways: list[Way]) -> str:
    """After its own words and after the teacher's, where an `exposure_bias` stage looked at the model."""
    rows = []
    for way in ways:
        for stage in run.main_stages:
            if stage.kind == "exposure_bias" and stage.input_model == way.stage.name and stage.metrics:
                rows.append([text(way.stage.name), *_distances(stage)])
    if not rows:
        return ""
    head = ["model", "after its own words", "after the teacher's", "exposure bias", "reverse KL: own", "teacher's"]
    told = (
        "Distance of the student from its teacher on held-out problems, KL(teacher ‖ student) in nats a token: after "
        "prefixes that the student wrote, and after prefixes that the teacher wrote. The exposure bias is their "
        "difference, paired over problems, with its 95% interval; last, the same with KL(student ‖ teacher)."
    )
    return f'<h4>Exposure bias</h4><p class="note">{text(told)}</p>' + table(head, rows)


def _distances(stage: StageView) -> list[str]:
    metric = {key.removeprefix("exposure/"): value for key, value in stage.metrics.items()}
    low, high = number(metric.get("forward_kl_gap_low")), number(metric.get("forward_kl_gap_high"))
    return [
        number(metric.get("own_forward_kl")),
        number(metric.get("teacher_forward_kl")),
        f"<b>{number(metric.get('forward_kl_gap'))}</b> <small>{low} … {high}</small>",
        number(metric.get("own_reverse_kl")),
        number(metric.get("teacher_reverse_kl")),
    ]


def _suites(run: RunView, ways: list[Way]) -> list[str]:
    rows = [row for way in ways for row in _results(run, way)]
    return list(dict.fromkeys(row["suite"] for row in rows if row["n"]))


def _k(run: RunView, ways: list[Way], suite: str) -> int:
    """The largest number of responses a problem that every evaluation has."""
    most = [max((row["n"] for row in _results(run, way) if row["suite"] == suite), default=0) for way in ways]
    return min((n for n in most if n), default=1)


def _rates(run: RunView, way: Way, suite: str, k: int) -> dict[str, float]:
    """problem -> pass@k"""
    rows = [row for row in _results(run, way) if row["suite"] == suite and row["n"] >= k]
    return {row["problem_id"]: pass_at_k(row["n"], row["c"], k) for row in rows}


def _results(run: RunView, way: Way) -> list[dict]:
    evaluation = run.evaluation(way.stage.name)
    return evaluation.results if evaluation is not None else []
