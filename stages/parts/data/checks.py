"""What can be wrong with a source of problems, found before anything runs. No torch; a file's first lines are read."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import Fault
from stages.parts.data.columns import GUESSES, read_row, resolve_columns

if TYPE_CHECKING:
    from stages.parts.data.config import DataConfig

FIRST_LINES = 20


def source_faults(cfg: DataConfig) -> list[Fault]:
    """Faults of one `DataConfig`; keys are its fields."""
    from stages.parts.data.config import SOURCES, VERIFIERS

    if cfg.source not in SOURCES:
        return [Fault("source", f"'{cfg.source}' is unknown", f"write one of {', '.join(SOURCES)}")]
    faults = [
        Fault(name, f"is {getattr(cfg, name)}", "write a positive number")
        for name in ("train_problems", "dev_problems", "test_problems", "difficulty")
        if getattr(cfg, name) < 1
    ]
    if cfg.verifier not in VERIFIERS:
        faults.append(Fault("verifier", f"'{cfg.verifier}' is unknown", f"write one of {', '.join(VERIFIERS)}"))
    for name, source in (("path", "jsonl"), ("name", "hub")):
        if getattr(cfg, name) and cfg.source != source:
            problem = f"is '{getattr(cfg, name)}', which source={cfg.source} does not read"
            faults.append(Fault(name, problem, f"write NODE={source}, or leave it out"))
    unknown = sorted(set(cfg.columns) - set(GUESSES))
    if unknown:
        faults.append(Fault("columns", f"maps {', '.join(unknown)}", f"ours are {', '.join(GUESSES)}"))
    if cfg.source == "jsonl":
        return faults + file_faults(cfg)
    if cfg.source == "hub":
        return faults + hub_faults(cfg)
    return faults + family_faults(cfg)


def hub_faults(cfg: DataConfig) -> list[Fault]:
    if not cfg.name:
        return [Fault("name", "is missing", "write NODE.name=ORG/NAME")]
    if not Path(cfg.name).exists() and (cfg.name.startswith(("/", ".", "~")) or cfg.name.count("/") != 1):
        return [Fault("name", f"'{cfg.name}' is no folder, and no hub name", "name a folder, or ORG/NAME")]
    return []


def family_faults(cfg: DataConfig) -> list[Fault]:
    known = suite_families(cfg)
    unknown = [name for name in cfg.families if name not in known]
    if unknown:
        return [Fault("families", f"names {', '.join(unknown)}", f"choose from {', '.join(known)}")]
    return []


def suite_families(cfg: DataConfig) -> list[str]:
    """The names of the embedded families of a source; none for files."""
    from stages.parts.data.families import OF_SOURCE

    return list(OF_SOURCE.get(cfg.source, {}))


def suite_parts(cfg: DataConfig) -> list[str]:
    """The parts of the reward that an embedded suite names; none where it is scored by the usual rules."""
    from stages.parts.data.families import OF_SOURCE

    families = OF_SOURCE.get(cfg.source, {}).values()
    return list(dict.fromkeys(part for family in families for part in family.scored_by))


def file_faults(cfg: DataConfig) -> list[Fault]:
    """Whether the file opens, holds rows, and has the columns that are needed."""
    if not cfg.path:
        return [Fault("path", "is missing", "write NODE.path=FILE (.jsonl or .parquet)")]
    path = Path(cfg.path)
    try:
        rows = first_rows(Path(cfg.path))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return [Fault("path", f"'{cfg.path}' cannot be read: {reason}", "name a readable .jsonl or .parquet file")]
    if not rows:
        return [Fault("path", f"'{cfg.path}' holds no rows", "name a file with at least three rows")]
    names = sorted({name for row in rows for name in row})
    try:
        columns = resolve_columns(names, cfg.columns)
    except KeyError as error:
        return [Fault("columns", f"there is no column {error} in '{cfg.path}'", f"it has {', '.join(names)}")]
    remedy = f"map ours to theirs, NODE.columns.prompt=NAME: the file has {', '.join(names)}"
    if "prompt" not in columns and "messages" not in columns:
        return [Fault("columns", f"'{cfg.path}' has no column that is known as the prompt", remedy)]
    try:
        read = [usable for row in rows if (usable := read_row(row, columns)) is not None]
    except (KeyError, TypeError, AttributeError) as error:
        return [Fault("columns", f"a row of '{cfg.path}' is not as its columns say ({error!r})", remedy)]
    if not read:
        return [Fault("columns", f"no row of '{cfg.path}' has a question with an answer or a worked reply", remedy)]
    judged = {row.messages[-1]["content"] for row in read if row.answer}
    if len(rows) < FIRST_LINES and len(judged) < 3:  # that was the whole file
        problem = f"'{cfg.path}' holds {len(judged)} distinct questions with an answer"
        return [Fault("path", problem, "three splits need at least three; conversations alone are no problems")]
    return []


def first_rows(path: Path, count: int | None = FIRST_LINES) -> list[dict[str, Any]]:
    """The first rows (None: all) of a .jsonl or .parquet file. Raises OSError or ValueError with a line for people."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        batches = parquet.ParquetFile(path).iter_batches(batch_size=count or 4096)
        rows = [row for batch in (islice(batches, 1) if count else batches) for row in batch.to_pylist()]
        return rows[:count]
    rows = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if count is not None and len(rows) == count:
                break
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not a JSON object")
            rows.append(row)
    return rows


def has_demonstrations(cfg: DataConfig) -> bool:
    """Whether a source can serve worked replies; the hub is believed to. The rest of a file is read only where its
    first rows have none."""
    if cfg.source != "jsonl" or not cfg.path or file_faults(cfg):
        return True
    try:
        return any(_shows_replies(cfg, Path(cfg.path), count) for count in (FIRST_LINES, None))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True  # a row further down is broken: the stage that reads it says so


def _shows_replies(cfg: DataConfig, path: Path, count: int | None) -> bool:
    rows = first_rows(path, count)
    columns = resolve_columns(sorted({name for row in rows for name in row}), cfg.columns)
    read = (read_row(row, columns) for row in rows)
    return any(row is not None and row.reply is not None for row in read)
