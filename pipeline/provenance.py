"""Where a result came from: code, packages, machine. Torch-free; nothing secret is looked at."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "datasets", "deepspeed", "peft", "numpy",
    "reasoning-gym", "math-verify", "hydra-core", "omegaconf", "wandb",
)  # fmt: skip


@functools.cache
def git_state() -> dict[str, Any]:
    """{commit, dirty} of the project; None where it is not a git checkout."""

    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    if not (ROOT / ".git").exists():
        return {"commit": None, "dirty": None}
    return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}


@functools.cache
def package_versions() -> dict[str, str]:
    installed = {name: _version(name) for name in PACKAGES}
    return {"python": platform.python_version()} | {name: v for name, v in installed.items() if v is not None}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def hardware() -> dict[str, Any]:
    """{cpu, cores, memory_gib, gpus, gpu_names}, read from the kernel."""
    cpu = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": len(visible_devices()),
        "gpu_names": gpu_names(),
    }


def visible_devices() -> list[str]:
    """The NVIDIA GPUs as CUDA_VISIBLE_DEVICES names them ("0", "1", or what it holds), without touching CUDA."""
    folder = Path("/proc/driver/nvidia/gpus")
    cards = len(list(folder.iterdir())) if folder.is_dir() else 0
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or cards == 0:
        return [str(index) for index in range(cards)]
    return [device.strip() for device in chosen.split(",") if device.strip() not in ("", "-1")]


def gpu_names() -> list[str]:
    """Models of the visible GPUs, as far as the kernel tells them."""
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    models = [line.split(":", 1)[1].strip() for card in cards for line in _lines(card) if line.startswith("Model")]
    return models[: len(visible_devices())]


def _lines(path: str | Path) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def source_digest(package: str) -> str:
    """Hash of a stage kind's modules ("stages.sft") and of all modules of this project that they import.

    The closure is static (imports inside functions count too), over `pipeline/`, `stages/` and the package's own root.
    """
    known = _KNOWN.get((ROOT, package))
    if known is None or any(_changed(path) != changed for path, changed in known[0]):
        files = _closure(package)
        total = hashlib.sha256()
        for name in sorted(files):
            total.update(f"{name}\0{hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
        known = [(str(path), _changed(str(path))) for path in files.values()], total.hexdigest()[:16]
        _KNOWN[ROOT, package] = known
    return known[1]


# (project, package) -> its files with the time of their last change, and their digest: files may be edited while a long
# run goes on, and a sweep plans hundreds of jobs
_KNOWN: dict[tuple[Path, str], tuple[list[tuple[str, int]], str]] = {}


def _changed(path: str) -> int:
    return os.stat(path).st_mtime_ns if os.path.exists(path) else 0


def _closure(package: str) -> dict[str, Path]:
    roots = {"pipeline", "stages", package.split(".")[0]}
    found: dict[str, Path] = {}
    waiting = [f"{package}.config", f"{package}.run"]
    while waiting:
        name = waiting.pop()
        path = _module_file(name) if name not in found and name.split(".")[0] in roots else None
        if path is None:
            continue
        found[name] = path
        waiting += [*_imports(path, path.stat().st_mtime_ns, name), *_parents(name)]
    return found


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _module_file(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.exists():
            return path
    return None


@functools.cache
def _imports(path: Path, changed: int, name: str) -> list[str]:
    """Modules that the file at `path`, module `name`, names; read once per state, as every stage's closure meets it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return names
