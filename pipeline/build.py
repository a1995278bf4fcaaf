"""Building one stage: lock its entry, look once more, open the partial folder, run the ranks, seal, publish.

Whatever goes wrong, what was sealed stays sealed, and the partial folder keeps its checkpoints for the next attempt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline import provenance, store
from pipeline.artifacts import MODEL_FACTS, Artifact, Interrupted, Port
from pipeline.estimates import record_work
from pipeline.job import package_of, write_job
from pipeline.launch import Launcher, Outcome, Stop
from pipeline.lineage import write_lineage
from pipeline.plan_types import Plan, PlannedStage
from pipeline.sources import Digests
from pipeline.summary import StageRecord, read_notes
from pipeline.worker import is_disk_full


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def digests_of(inputs: dict[str, Artifact]) -> dict[str, str]:
    return {port: artifact.digest for port, artifact in inputs.items()}


def inputs_of(plan: Plan, records: dict[str, StageRecord], stage: PlannedStage) -> dict[str, Artifact]:
    """Today's inputs: sealed outputs of stages that have ended in this run, or what the plan resolved outside."""
    inputs = {}
    for port, source in stage.inputs.items():
        if source.stage is None:
            path, digest, facts = source.path, source.digest, source.facts
            assert path is not None and digest is not None
        else:
            manifest, producer = records[source.stage].manifest, plan.stage(source.stage)
            assert manifest is not None and source.output is not None
            output = manifest["outputs"][source.output]
            path = store.entry_path(plan.store, producer.kind, producer.fingerprint) / output["path"]
            digest = output["digest"]
            facts = {key: value for key, value in output.items() if key not in ("kind", "path", "digest")}
        inputs[port] = Artifact(port, source.kind, path, facts, source.fingerprint, digest)
    return inputs


def sealed(plan: Plan, planned: PlannedStage, inputs: dict[str, Artifact], since: str) -> dict[str, Any] | None:
    """The manifest to use instead of running; a forced stage takes only one that was sealed after `since`."""
    manifest = store.read_manifest(plan.store, planned.kind, planned.fingerprint)
    if manifest is None or not store.is_current(manifest, digests_of(inputs)):
        return None
    return None if planned.forced and manifest["created"] < since else manifest


def take_cached(record: StageRecord, plan: Plan, planned: PlannedStage, manifest: dict[str, Any]) -> None:
    record.folder = store.entry_path(plan.store, planned.kind, planned.fingerprint)
    record.metrics, record.seconds, record.manifest = manifest["metrics"], 0.0, manifest


def build(
    plan: Plan,
    planned: PlannedStage,
    inputs: dict[str, Artifact],
    record: StageRecord,
    launcher: Launcher,
    stop: Stop,
    since: str,
    tell: Callable[[str], None],
) -> Outcome:
    """Bring `planned` into the store and fill its record (the status of an ended stage is the runner's to set).

    Raises only what is a fault of the driver itself.
    """

    def waiting(holder: str) -> None:
        record.status = "locked"
        tell(f"{planned.name}: {holder} is computing it; waiting")

    try:
        with store.locked(plan.store, planned.kind, planned.fingerprint, waiting, stop.event):
            digests = digests_of(inputs)
            store.finish_earlier(plan.store, planned.kind, planned.fingerprint, digests, planned.forced)
            if (manifest := sealed(plan, planned, inputs, since)) is not None:
                take_cached(record, plan, planned, manifest)
                return Outcome("done", how="cached")
            return _build_locked(plan, planned, inputs, record, launcher, stop)
    except Interrupted as reason:
        return Outcome("interrupted", str(reason))
    except OSError as error:
        if not is_disk_full(error):
            raise
        return Outcome("failed", f"the disk of {plan.store} is full: free some space and run again; nothing is lost")


def _build_locked(
    plan: Plan,
    planned: PlannedStage,
    inputs: dict[str, Artifact],
    record: StageRecord,
    launcher: Launcher,
    stop: Stop,
) -> Outcome:
    ports: dict[str, Port] = importlib.import_module(type(planned.cfg).__module__).OUTPUTS
    key = plan.store, planned.kind, planned.fingerprint
    folder, resumed = store.open_partial(*key, digests_of(inputs), list(ports))
    write_job(folder, planned, inputs, _seconds_before(folder) if resumed else 0.0)
    (folder / "progress.json").unlink(missing_ok=True)
    source = provenance.source_digest(package_of(planned.cfg))  # of now: ranks import the code as it stands
    record.notes_shown = len(read_notes(folder))  # by the earlier attempts
    record.status, record.folder = "running", folder
    outcome = launcher.run(folder, planned, stop)
    if outcome.status == "done":
        result = json.loads((folder / "result.json").read_text())
        missing = [name for name, port in ports.items() if not port.optional and not (folder / name).is_dir()]
        if missing:
            outcome = Outcome("failed", f"it ended without writing its output {', '.join(missing)}")
    if outcome.status != "done":
        return outcome
    record.manifest = manifest_of(planned, inputs, ports, folder, result | {"source_digest": source})
    write_lineage(folder, record.manifest, planned, inputs, Digests.of_store(plan.store))
    store.seal(folder, record.manifest)
    record.folder = store.publish(*key)
    with contextlib.suppress(OSError):  # a memo: the result is there, also on a full disk
        record_work(plan.store, planned)
    record.metrics, record.seconds = result["metrics"], result["seconds"]
    record.span = (result["began"], result["ended"])
    return Outcome("done", how="resumed" if resumed else "ran")


def _seconds_before(folder: Path) -> float:
    """Time of the earlier attempts, as far as their last sign of life tells."""
    job, progress = folder / "job.json", folder / "progress.json"
    before = json.loads(job.read_text())["seconds_before"] if job.exists() else 0.0
    return float(before + (json.loads(progress.read_text())["seconds"] if progress.exists() else 0.0))


def manifest_of(
    planned: PlannedStage, inputs: dict[str, Artifact], ports: dict[str, Port], folder: Path, result: dict[str, Any]
) -> dict[str, Any]:
    """artifact.json. Facts are those that the stage declared; the plan's stand in where it said nothing."""
    outputs = {}
    for name, port in ports.items():
        if (folder / name).is_dir():
            facts = planned.outline.outputs.get(name, {}) | result["facts"].get(name, {})
            digest = store.digest_folder(folder / name)
            outputs[name] = facts | {"kind": port.kind, "path": name, "digest": digest}  # a stage may pass facts on
    package = package_of(planned.cfg)
    return {
        "kind": planned.kind,
        "fingerprint": planned.fingerprint,
        "recipe_version": importlib.import_module(f"{package}.config").RECIPE_VERSION,
        "source_digest": result["source_digest"],
        "stage": planned.name,
        "inputs": {port: {"fingerprint": one.fingerprint, "digest": one.digest} for port, one in inputs.items()},
        "outputs": outputs,
        "metrics": result["metrics"],
        "seconds": round(result["seconds"], 3),
        "seed": planned.cfg.seed,
        "engine": dataclasses.asdict(planned.cfg.engine),
        "ranks": planned.ranks,
        "threads": planned.threads,
        "git": provenance.git_state(),
        "packages": provenance.package_versions(),
        "hardware": provenance.hardware(),
        "created": now(),
    }


def drifted_facts(planned: PlannedStage, manifest: dict[str, Any]) -> list[str]:
    """Facts of a model that came out otherwise than the plan was told (the plan checked hand-offs on them)."""
    drifted = []
    for port, declared in planned.outline.outputs.items():
        made = manifest["outputs"].get(port, {})
        for fact in MODEL_FACTS:
            if fact in declared and fact in made and declared[fact] != made[fact]:
                drifted.append(f"{port}: {fact} was planned as {declared[fact]} and came out as {made[fact]}")
    return drifted
