"""What can be wrong with a source of problems, found before anything runs. No torch."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import Fault
from stages.parts.data.columns import GUESSES, Row, read_row, resolve_columns
from stages.parts.data.splits import normalise

if TYPE_CHECKING:
    from stages.parts.data.config import DataConfig

# Which fields a source reads, beside the sizes; families of our own: the first two.
OF_TASKS = ("families", "difficulty")
OF_ROWS = ("path", "name", "revision", "subset", "split", "columns", "instruction", "verifier")
OF_FILES = ("path", "columns", "instruction", "verifier")
MOST_DIFFICULT = 20  # here basic_arithmetic keeps one of 500 draws: thousands of problems take minutes
FIRST_LINES = 20
SMALL_FILE = 8 * 2**20  # bytes, read in about a quarter of a second


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
    if cfg.difficulty > MOST_DIFFICULT:
        problem = f"is {cfg.difficulty}: some families have almost no exercises that hard"
        faults.append(Fault("difficulty", problem, f"write 1 to {MOST_DIFFICULT}"))
    faults += [
        Fault(name, f"is {getattr(cfg, name)}", "write 0 or more")
        for name in ("demonstrations", "seed")
        if getattr(cfg, name) < 0
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


def unread(cfg: DataConfig) -> list[str]:
    """Fields that do nothing for this source, whatever they say."""
    read = {"jsonl": OF_FILES, "hub": tuple(name for name in OF_ROWS if name != "path")}.get(cfg.source, OF_TASKS)
    return [name for name in (*OF_TASKS, *OF_ROWS) if name not in read]


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
    """Whether the file opens, holds rows, and has the columns that are needed. A small file is read to its end, of a
    larger one the first lines: the stage that reads the rest says what is wrong with a row of it."""
    if not cfg.path:
        return [Fault("path", "is missing", "write NODE.path=FILE (.jsonl or .parquet)")]
    path = Path(cfg.path)
    try:
        whole = path.stat().st_size <= SMALL_FILE
        rows = first_rows(path, None if whole else FIRST_LINES)
    except OSError as error:
        problem = f"'{cfg.path}' cannot be read: {error.strerror or error}"
        remedy = "name a readable .jsonl or .parquet file"
        if cfg.path.startswith("~"):  # which a shell leaves as it is after a =
            remedy = f"write {path.expanduser()}"
        return [Fault("path", problem, remedy)]
    except ValueError as error:
        problem = f"'{cfg.path}' cannot be read: {str(error).splitlines()[0]}"
        return [Fault("path", problem, "mend it, or name another .jsonl or .parquet file")]
    if not rows:
        return [Fault("path", f"'{cfg.path}' holds no rows", "name a file with at least three rows")]
    names = sorted({name for row in rows.values() for name in row})
    try:
        columns = resolve_columns(names, cfg.columns)
    except KeyError as error:
        return [Fault("columns", f"there is no column {error} in '{cfg.path}'", f"it has {', '.join(names)}")]
    remedy = f"map ours to theirs, NODE.columns.prompt=NAME: the file has {', '.join(names)}"
    if "prompt" not in columns and "messages" not in columns:
        return [Fault("columns", f"'{cfg.path}' has no column that is known as the prompt", remedy)]
    try:
        read = usable_rows(rows, columns)
    except ValueError as error:
        return [Fault("columns", f"'{cfg.path}', {error}", f"mend that row, or {remedy}")]
    if not read:
        return [Fault("columns", f"no row of '{cfg.path}' has a question with an answer or a worked reply", remedy)]
    judged = {normalise(row.messages[-1]["content"]) for row in read if row.answer}
    if whole and len(judged) < 3:
        problem = f"'{cfg.path}' holds {len(judged)} distinct questions with an answer"
        return [Fault("path", problem, "three splits need at least three; conversations alone are no problems")]
    return []


def first_rows(path: Path, count: int | None = FIRST_LINES) -> dict[int, dict[str, Any]]:
    """The first rows (None: all) of a .jsonl or .parquet file by number of the line, from 1. Raises OSError, or
    ValueError with a line for people."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        batches = parquet.ParquetFile(path).iter_batches(batch_size=count or 4096)
        rows = [row for batch in (islice(batches, 1) if count else batches) for row in batch.to_pylist()]
        return dict(enumerate(rows[:count], start=1))
    found: dict[int, dict[str, Any]] = {}
    with path.open(encoding="utf-8-sig") as file:  # some editors begin a file with a mark
        for number, line in enumerate(file, start=1):
            if count is not None and len(found) == count:
                break
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON") from error
            if "\\u" in line and not _is_text(row):
                raise ValueError(f"line {number} has half of a character (a surrogate without its other half)")
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not a JSON object")
            found[number] = row
    return found


def _is_text(row: Any) -> bool:
    """JSON can write half of a character, which no file and no tokenizer takes."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def usable_rows(rows: dict[int, dict[str, Any]], columns: dict[str, str], instruction: str = "") -> list[Row]:
    """The rows that are problems or demonstrations, in order. Raises ValueError with the number of one that is neither
    that nor empty."""
    from stages.parts.data.config import VERIFIERS

    usable = []
    for number, raw in rows.items():
        try:
            row = read_row(raw, columns, instruction)
        except ValueError as error:
            raise ValueError(f"line {number} {error}") from error
        if row is not None and row.verifier is not None and row.verifier not in VERIFIERS:
            raise ValueError(f"line {number} names the verifier '{row.verifier}'; there are {', '.join(VERIFIERS)}")
        usable += [row] if row is not None else []
    return usable


def has_demonstrations(cfg: DataConfig) -> bool:
    """Whether a source can serve worked replies; the hub is believed to. The rest of a file is read only where its
    first rows have none."""
    if cfg.source != "jsonl" or not cfg.path or file_faults(cfg):
        return True
    try:
        return any(_shows_replies(cfg, Path(cfg.path), count) for count in (FIRST_LINES, None))
    except (OSError, ValueError, KeyError):
        return True  # a row further down is broken: the stage that reads it says so


def _shows_replies(cfg: DataConfig, path: Path, count: int | None) -> bool:
    rows = first_rows(path, count)
    columns = resolve_columns(sorted({name for row in rows.values() for name in row}), cfg.columns)
    return any(row.reply is not None for row in usable_rows(rows, columns))
