"""What a fresh clone needs: declared, pinned, and installed without a second copy of the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = {"pipeline", "stages", "scripts", "tests", "run"}
# import name -> distribution, where they differ
DISTRIBUTIONS = {"hydra": "hydra-core", "yaml": "pyyaml", "PIL": "pillow"}


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def declared() -> dict[str, list[Requirement]]:
    groups = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    return {group: [Requirement(line) for line in lines] for group, lines in groups.items()}


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [
        line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line)
    ] == []  # no path, no host
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_every_import_is_declared():
    names = {canonicalize_name(requirement.name) for group in declared().values() for requirement in group}
    missing = set()
    for path in tracked("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            for top in {module.split(".")[0] for module in modules} - OWN - set(sys.stdlib_module_names):
                if canonicalize_name(DISTRIBUTIONS.get(top, top)) not in names:
                    missing.add(f"{top} ({path.relative_to(ROOT)})")
    assert missing == set()


def test_what_make_installs_is_pinned_inside_the_ranges():
    pinned = pins()
    groups = declared()
    for group in ("", "dev", "sweep", "lora"):
        for requirement in groups[group]:
            version = pinned.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement.name} has no line in constraints.txt"
            assert requirement.specifier.contains(version, prereleases=True), requirement


def test_the_distribution_has_no_module():
    """A copy of the code in site-packages could be imported instead of the one that is being edited."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings == {"packages": []}


def test_make_installs_once():
    """With a stamp that is newer than both files nothing is installed again."""
    old = [f"--old-file={name}" for name in ("pyproject.toml", "constraints.txt", ".venv/.installed")]
    made = subprocess.run(["make", "--dry-run", *old, "test"], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert "pip install" not in made.stdout
    assert "pytest" in made.stdout


def test_files_that_a_project_needs():
    for name in ("LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", ".ci/run", "outputs/.gitkeep"):
        assert (ROOT / name).exists(), name
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
