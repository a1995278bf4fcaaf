"""How the code is cut, as rules: who may import whom, and what must be importable without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "datasets", "deepspeed"}
SEEN_BY_STAGES = {"pipeline.config", "pipeline.artifacts", "pipeline.tracking", "pipeline.statistics"}


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports anywhere, `from package import name` as package.name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offenders(folder: str, is_wrong) -> list[str]:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    return [f"{file.relative_to(ROOT)}: {name}" for file in files for name in imports(file) if is_wrong(name)]


def test_the_driver_never_imports_torch():
    assert offenders("pipeline", lambda name: name.split(".")[0] in HEAVY) == []


def test_the_driver_knows_only_the_heads_of_the_stages():
    def is_wrong(name: str) -> bool:
        return name.split(".")[0] == "stages" and ".config." not in f"{name}."

    assert offenders("pipeline", is_wrong) == []


def test_stages_know_only_the_contracts_of_the_driver():
    def is_wrong(name: str) -> bool:
        return name.split(".")[0] == "pipeline" and not any(f"{name}.".startswith(f"{m}.") for m in SEEN_BY_STAGES)

    assert offenders("stages", is_wrong) == []


def test_heads_and_driver_load_without_torch():
    heads = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "stages").rglob("config.py")]
    driver = [f"pipeline.{path.stem}" for path in (ROOT / "pipeline").glob("*.py") if path.stem != "__init__"]
    code = f"""
import importlib, sys
for name in {sorted(heads) + sorted(driver)!r}:
    importlib.import_module(name)
    heavy = {sorted(HEAVY)!r}
    assert not any(module in sys.modules for module in heavy), name
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_scripts_are_never_imported():
    wrong = [
        entry for folder in ("pipeline", "stages") for entry in offenders(folder, lambda n: n.startswith("scripts"))
    ]
    assert wrong == []
