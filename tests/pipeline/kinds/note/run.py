from __future__ import annotations

import json
from pathlib import Path

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context, Metrics
from tests.pipeline.kinds.note.config import NoteConfig


def run(cfg: NoteConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    texts = [cfg.text, *(Path(cfg.path).read_text().split() if cfg.path else [])]
    rows = [{"messages": [{"role": "user", "content": text}], "seed": cfg.seed} for text in texts]
    for artifact in inputs.values():
        rows += [json.loads(line) for line in (artifact.path / "train.jsonl").read_text().splitlines()]
    if cfg.fail:
        checkpoint = context.checkpoints / "step-1"
        checkpoint.mkdir(parents=True)
        raise StageFailed("it was told to")
    (context.output("rows") / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (context.output("ledger") / "results.jsonl").write_text(json.dumps({"rows": len(rows)}) + "\n")
    context.declare("rows", rows=len(rows))
    return {"ledger/rows": len(rows)}
