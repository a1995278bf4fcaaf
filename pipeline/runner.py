"""Executes a plan: reuse, resume or run each stage, several side by side, and tell what happened.

The order is the plan's, with the longest remaining chain first; evaluations fill the gaps. A failure starts nothing
new, and lets what is running beside it end; a stop request makes every running stage write a checkpoint. Either way
the same command goes on from there.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import signal
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import build, gates
from pipeline.config import RunConfig
from pipeline.display import Display, append, duration, final_table, make_display
from pipeline.job import plain
from pipeline.launch import Launcher, Outcome, Stop, heard, make_launcher
from pipeline.plan_types import Plan, PlannedStage
from pipeline.report import write_report
from pipeline.run_folder import claim, link
from pipeline.store import entry_path
from pipeline.summary import StageRecord, read_notes, records_of, write_summary
from pipeline.trackers import Tracker, make_tracker
from pipeline.worker import is_disk_full

# In pieces, for between them the fork server hears its drivers
PRELOAD = ("stages.parts.preload_data", "transformers.modeling_utils", "deepspeed", "stages.parts.preload")


@dataclass
class Run:
    """The state of one execution."""

    plan: Plan
    cfg: RunConfig
    run_dir: Path
    command: str
    records: dict[str, StageRecord]
    display: Display
    tracker: Tracker
    preload: tuple[str, ...]
    stop: Stop = field(default_factory=Stop)
    launcher: Launcher | None = None
    failure: dict[str, str] = field(default_factory=dict)  # stage, message of the first
    gates: dict[str, str | None] = field(default_factory=dict)  # judged: stage -> what does not hold
    since: str = field(default_factory=build.now)
    began: float = field(default_factory=time.time)

    @property
    def console(self) -> Path:
        return self.run_dir / "console.log"


def execute(
    plan: Plan,
    cfg: RunConfig,
    run_dir: Path,
    overrides: list[str],
    group: str | None = None,
    preload: tuple[str, ...] = PRELOAD,
    stop: Stop | None = None,
) -> int:
    """Run a plan; returns the exit status (0, 1, 2 where the run folder is in use, 128 + signal).

    `run_dir` gets plan.json, summary.json, report.html, console.log and links into the store; `group` is the sweep's
    name for the tracker; `preload` are what the fork server imports, in order; `stop` keeps what signals asked for.
    """
    command = shlex.join(["python", "run.py", *overrides])
    try:
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(claim(run_dir, plan)):
                print(f"name={plan.name}: another plan is running under this name; give this one another name=NAME")
                return 2
            append(run_dir / "console.log", f"\n=== {time.strftime('%Y-%m-%d %H:%M:%S')} {command}")
            records = records_of(plan)
            display = make_display(list(records.values()), run_dir / "console.log")
            stack.callback(display.close)
            tracker = make_tracker(cfg.tracker, plan.name, group or plan.name, Path(cfg.output_dir))
            stack.callback(tracker.close)
            run = Run(plan, cfg, run_dir, command, records, display, tracker, preload, stop or Stop())
            stack.enter_context(heard(run.stop.request))  # the first asks for checkpoints, the second ends the ranks
            schedule(run)
            return conclude(run)
    except OSError as error:
        if not is_disk_full(error):
            raise
        print(f"{plan.name}: failed: the disk of {run_dir} is full: free some space and run again", flush=True)
        return 1


def schedule(run: Run) -> None:
    """Start what is ready until nothing is left, or nothing may be started any more."""
    slots = run.plan.parallel if run.cfg.launcher.kind == "local" else 1
    running: dict[Future[Outcome], PlannedStage] = {}
    with ThreadPoolExecutor(max_workers=slots) as pool, stop_on_error(run):
        while True:
            ready = [] if run.failure or run.stop.times else ready_stages(run)
            if any(take_if_cached(run, stage) for stage in ready):
                continue  # its readers may be ready now
            for stage in ready[: slots - len(running)]:
                running[start(run, stage, pool)] = stage
            if not running:
                return
            done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            watch(run)
            for future in done:
                settle(run, running.pop(future), future.result())


@contextlib.contextmanager
def stop_on_error(run: Run) -> Iterator[None]:
    """A fault of the driver itself must not leave it waiting for hours for the stages that still run."""
    try:
        yield
    except BaseException:
        run.stop.request(signal.SIGTERM)
        raise


def ready_stages(run: Run) -> list[PlannedStage]:
    """Stages whose inputs are there and whose gates let them, the most urgent first."""
    ready = []
    for stage in run.plan.stages:
        sources = [source.stage for source in stage.inputs.values() if source.stage is not None]
        if (
            stage.wanted
            and run.records[stage.name].status == "waiting"
            and all(run.records[name].finished for name in sources)
            and (stage.evaluates is not None or not gates.pending(run.plan, sources, run.gates))
        ):
            ready.append(stage)
    return sorted(ready, key=lambda stage: urgency(run.plan, stage))


def urgency(plan: Plan, stage: PlannedStage) -> tuple[int, int]:
    """Sort key: evaluations that nothing waits for come last; else the longest chain of readers first."""
    gated = stage.evaluates is not None and gates.has_gate(plan.stage(stage.evaluates))
    name = stage.evaluates if gated and stage.evaluates is not None else stage.name
    return (stage.evaluates is not None and not gated, -chain_length(plan, name))


def chain_length(plan: Plan, name: str) -> int:
    readers = [stage.name for stage in plan.stages if any(one.stage == name for one in stage.inputs.values())]
    return 1 + max((chain_length(plan, reader) for reader in readers), default=0)


def take_if_cached(run: Run, stage: PlannedStage) -> bool:
    manifest = build.sealed(run.plan, stage, build.inputs_of(run.plan, run.records, stage), run.since)
    if manifest is None:
        return False
    build.take_cached(run.records[stage.name], run.plan, stage, manifest)
    settle(run, stage, Outcome("done", how="cached"))
    return True


def start(run: Run, stage: PlannedStage, pool: ThreadPoolExecutor) -> Future[Outcome]:
    """Build the stage in a thread of the pool; inline in this one, as debuggers and torch like it."""
    record = run.records[stage.name]
    record.status = "locked"
    launcher = run.launcher = run.launcher or first_launcher(run)
    steps = f", {stage.outline.steps} steps" if stage.outline.steps else ""
    ranks = f", {stage.ranks} ranks" if stage.ranks > 1 else ""
    run.display.say(f"{stage.name}: starting ({stage.kind}{steps}{ranks})")
    inputs = build.inputs_of(run.plan, run.records, stage)
    task = functools.partial(
        build.build, run.plan, stage, inputs, record, launcher, run.stop, run.since, run.display.say
    )
    if run.cfg.launcher.kind != "inline":
        return pool.submit(task)
    future: Future[Outcome] = Future()
    future.set_result(task())
    return future


def first_launcher(run: Run) -> Launcher:
    """Made when the first stage must run: a run that is all cached starts no process."""
    return make_launcher(run.cfg.launcher, run.console, list(run.preload))


def watch(run: Run) -> None:
    """Between events: the display, and the tracker's view of the stages that have begun to run."""
    for stage in run.plan.stages:
        record = run.records[stage.name]
        if record.status == "running":
            track(run, stage)
            show_notes(run, record)
    run.display.refresh()
    run.tracker.poll()


def track(run: Run, stage: PlannedStage) -> None:
    """Tell the tracker once that a stage runs, or ran between two looks."""
    record = run.records[stage.name]
    if not record.tracked and record.folder is not None:
        record.tracked = True
        run.tracker.stage_started(stage, record.folder, plain(stage.cfg))


def show_notes(run: Run, record: StageRecord) -> None:
    """Notes of a stage on the screen; they are in console.log already, which is the stdout of its ranks."""
    notes = [] if run.cfg.launcher.kind == "inline" else read_notes(record.folder)
    for note in notes[record.notes_shown :]:
        run.display.show(f"{record.name}: {note}")
    record.notes_shown = max(record.notes_shown, len(notes))


def settle(run: Run, stage: PlannedStage, outcome: Outcome) -> None:
    """A stage has ended: say so, link it, check its gate, keep the summary up to date."""
    record = run.records[stage.name]
    if outcome.how != "cached":
        track(run, stage)
        show_notes(run, record)
    if outcome.status == "done":
        record.status = outcome.how
        link(run.run_dir / "stages" / stage.name, entry_path(run.plan.store, stage.kind, stage.fingerprint))
        took = "" if record.status == "cached" else f" in {duration(record.seconds)}"
        run.display.say(f"{stage.name}: {record.status}{took}")
        for drift in build.drifted_facts(stage, record.manifest or {"outputs": {}}):
            run.display.say(f"{stage.name}: {drift}")
        check_gates(run)
    elif outcome.status == "failed":
        record.status, record.error = "failed", outcome.message
        append(run.console, f"=== {stage.name} failed: {outcome.message}\n{outcome.traceback}")
        run.display.say(f"{stage.name}: failed: {outcome.message}")
        run.failure = run.failure or {"stage": stage.name, "message": outcome.message}
    else:
        record.status = "waiting"
        if not run.stop.times:  # somebody stopped the ranks, not us
            run.stop.request(signal.SIGTERM)
        run.display.say(f"{stage.name}: stopped; the same command goes on from there")
    run.tracker.stage_finished(stage.name, record.shown, record.metrics, record.folder)
    summarize(run, "running")


def check_gates(run: Run) -> None:
    """Judge the gates that can be judged now: when the stage and its evaluation have ended."""
    metrics = {name: record.metrics for name, record in run.records.items() if record.finished}
    for stage in run.plan.stages:
        if stage.name in run.gates or not gates.can_judge(run.plan, stage, metrics):
            continue
        problem = run.gates[stage.name] = gates.judge(run.plan, stage, metrics)
        if problem is None:
            continue
        run.display.say(f"{stage.name}: gate: {problem}")
        if stage.cfg.gate.on_fail == "stop":
            run.failure = run.failure or {"stage": stage.name, "message": f"gate: {problem}"}


def summarize(run: Run, status: str) -> None:
    wall = time.time() - run.began
    warned = {
        name: problem
        for name, problem in run.gates.items()
        if problem is not None and run.plan.stage(name).cfg.gate.on_fail == "warn"
    }
    write_summary(run.run_dir, run.plan, list(run.records.values()), status, wall, run.command, run.failure, warned)


def conclude(run: Run) -> int:
    """Final table, summary.json and report.html; returns the exit status."""
    wanted = [run.records[stage.name] for stage in run.plan.stages if stage.wanted]
    status, code = "done", 0
    if run.failure:
        status, code = "failed", 1
    elif not all(record.finished for record in wanted):
        status, code = "interrupted", 128 + run.stop.number
    run.display.close()
    evaluated = {stage.name: stage.evaluates for stage in run.plan.stages if stage.evaluates is not None}
    table = final_table(list(run.records.values()), evaluated)
    print(table, flush=True)
    append(run.console, table)
    summarize(run, status)
    report = write_report(run.run_dir)
    stage = f"{run.failure['stage']}: " if run.failure.get("stage") else ""
    reason = f": {stage}{run.failure['message']} (see {run.console})" if run.failure else ""
    print(f"{run.plan.name}: {status} in {duration(time.time() - run.began)}{reason}\nreport: {report}", flush=True)
    return code
