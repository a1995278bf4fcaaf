"""A kind for tests of lineage: it writes a data set, from a text, a file, and the data set before it."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.artifacts import Outline, Port
from pipeline.config import StageConfig, local_path, not_in_fingerprint

RECIPE_VERSION = 1
INPUTS = {
    "before": Port("dataset:conversations", "what was noted before", optional=True),
    "beside": Port("dataset:conversations", "what was noted elsewhere", optional=True),
}
OUTPUTS = {
    "rows": Port("dataset:conversations", "all notes"),
    "ledger": Port("metrics", "how many"),
}


@dataclass
class NoteConfig(StageConfig):
    kind: str = "note"
    seed: int = 0
    text: str = "note"
    path: str | None = local_path()
    fail: bool = not_in_fingerprint(False)


def outline(cfg: NoteConfig, inputs: dict) -> Outline:
    return Outline(outputs={"rows": {}, "ledger": {}})
