"""A kind's source digest covers what it imports, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import provenance


@pytest.fixture
def project(tmp_path: Path, monkeypatch):
    files = {
        "stages/__init__.py": "",
        "stages/echo/__init__.py": "",
        "stages/echo/config.py": "import os\n",
        "stages/echo/run.py": "def run():\n    from stages.parts import late\n    from ..parts.near import thing\n",
        "stages/parts/__init__.py": "",
        "stages/parts/late.py": "import stages.parts.deep\n",
        "stages/parts/deep.py": "",
        "stages/parts/near.py": "thing = 1\n",
        "stages/parts/other.py": "",
    }
    for name, text in files.items():
        (tmp_path / "p" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / name).write_text(text)
    monkeypatch.setattr(provenance, "ROOT", tmp_path / "p")
    return tmp_path / "p"


def digest() -> str:
    return provenance.source_digest("stages.echo")


MODULES = ["echo/config", "echo/run", "parts/late", "parts/deep", "parts/near", "parts/__init__"]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_the_kind_imports_counts(project, name):
    before = digest()
    (project / f"stages/{name}.py").write_text("changed = True\n" + (project / f"stages/{name}.py").read_text())
    assert digest() != before


def test_a_module_that_it_does_not_import_does_not(project):
    before = digest()
    (project / "stages/parts/other.py").write_text("changed = True\n")
    assert digest() == before


def test_hardware_and_packages_are_told():
    assert provenance.hardware()["cores"] >= 1
    assert provenance.package_versions()["python"].startswith("3.")


@pytest.mark.parametrize(("setting", "devices"), [(None, []), ("", []), ("0,1", [])])
def test_no_gpu_is_seen_where_there_is_none(monkeypatch, setting, devices):
    if Path("/proc/driver/nvidia/gpus").is_dir():
        pytest.skip("this machine has a GPU")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert provenance.visible_devices() == devices
