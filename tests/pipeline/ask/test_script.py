"""Scripts that print, as programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", ["audit", "compare", "diff", "gc", "lineage", "seeds"])
def test_a_reader_that_has_gone_ends_it_quietly(name: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, f"scripts/{name}.py", "--help"]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
