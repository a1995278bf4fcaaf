"""What a model scored: the evaluations of its weights in the store, and two of them compared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.ask.differences import changes, silent_fields
from pipeline.report.load import read_rows
from pipeline.statistics import Estimate, paired_difference, pass_at_k
from pipeline.store import MANIFEST, read_yaml

KIND = "evaluate"


@dataclass
class Evaluation:
    """One sealed evaluation of a model."""

    folder: Path
    manifest: dict[str, Any]

    @cached_property
    def config(self) -> dict[str, Any]:
        """What decides the numbers: not where it ran, nor the names of stages."""
        config = read_yaml(self.folder / "config.yaml")
        left_out = {"inputs", *silent_fields(KIND)}
        return {key: value for key, value in config.items() if key not in left_out}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """problem_id, suite, family, n, c."""
        return list(read_rows(self.folder / "results" / "results.jsonl"))

    @property
    def problems(self) -> str:
        return str(self.manifest["inputs"].get("problems", {}).get("digest", ""))

    def scores(self) -> dict[str, Estimate]:
        """suite/pass@k -> value with its 95% interval; what has no interval is left out."""
        metrics = self.manifest["metrics"]
        counts = {key.rpartition("/")[0]: int(metrics[key]) for key in metrics if key.endswith("/problems")}
        return {
            key: Estimate(value, metrics[f"{key}_low"], metrics[f"{key}_high"], counts.get(key.rpartition("/")[0], 0))
            for key, value in metrics.items()
            if value is not None and f"{key}_low" in metrics
        }


def evaluation_at(folder: Path) -> Evaluation | None:
    """The evaluation sealed in `folder`, if there is one."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = json.loads((folder / MANIFEST).read_text())
    return Evaluation(folder, manifest) if manifest["kind"] == KIND else None


def evaluations_of(digest: str, store: Path | None) -> list[Evaluation]:
    """All evaluations of a model (by the digest of its content) in a store, the newest first."""
    if store is None:
        return []
    found = [evaluation_at(path.parent) for path in store.glob(f"{KIND}-*/{MANIFEST}")]
    here = [one for one in found if one is not None and one.manifest["inputs"]["model"]["digest"] == digest]
    return sorted(here, key=lambda one: one.manifest["created"], reverse=True)


def comparable(a: list[Evaluation], b: list[Evaluation]) -> tuple[Evaluation, Evaluation] | None:
    """Two evaluations on the same problems and settings, or the newest of each; None where a side has none."""
    for one in a:
        for other in b:
            if one.problems == other.problems and not changes(one.config, other.config):
                return one, other
    return (a[0], b[0]) if a and b else None


def difference(key: str, a: Evaluation, b: Evaluation) -> Estimate | None:
    """B - A in suite/pass@k, paired over the problems; None where the two did not answer the same ones."""
    if a.problems != b.problems:
        return None
    suite, _, name = key.rpartition("/")
    k = int(name.removeprefix("pass@"))
    before, after = (_by_problem(side, suite, k) for side in (a, b))
    return paired_difference(after, before)


def _by_problem(evaluation: Evaluation, suite: str, k: int) -> dict[str, float]:
    rows = [row for row in evaluation.rows if row["suite"] == suite and row["n"] >= k]
    return {row["problem_id"]: pass_at_k(row["n"], row["c"], k) for row in rows}
