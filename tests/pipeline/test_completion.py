"""What a shell offers: asked as the shells ask, and typed into the shells that are here."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from pipeline.completion import complete
from pipeline.shells import SCRIPTS

ROOT = Path(__file__).parents[2]


def offered(line: str) -> list[str]:
    return complete(f"python run.py {line}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("engine=zero3", ["engine=zero3", "engine=zero3_checkpointing", "engine=zero3_offload"]),
        ("dry", ["dry_run="]),
        ("dry_run=", ["dry_run=false", "dry_run=true"]),
        ("experiment=[smoke,dr", ["experiment=[smoke,dr_grpo"]),
        ("stages.reas", ["stages.reasoning_rl."]),
        ("stages.base.mo", []),  # is the run's, which is set at model.
        ("stages.reasoning_rl.algorithm.epsilon", ["epsilon=", "epsilon_high="]),
        ("stages.reasoning_rl.gate.on_fail=", ["on_fail=stop", "on_fail=warn"]),
        ("stages.reasoning_rl.G=", ["stages.reasoning_rl.G=8"]),  # what it is now
        ("G=4 stages.reasoning_rl.G=", ["stages.reasoning_rl.G=4"]),
        ("pipeline=r1_zero stages.", ["stages.base.", "stages.problems.", "stages.reasoning_rl."]),
        ("-m pipeline=r1_zero,r1_style G=4,8 ~stages.reas", ["~stages.reasoning_rl"]),
        ("algorithm@stages.reas", ["algorithm@stages.reasoning_rl.algorithm="]),
        ("algorithm@stages.reasoning_rl.algorithm=da", ["algorithm@stages.reasoning_rl.algorithm=dapo"]),
        ("until=reasoning", ["until=reasoning_rl", "until=reasoning_rl.eval"]),
        ("from_stage=reasoning", ["from_stage=reasoning_rl"]),
        ("force=[base,problem", ["force=[base,problems"]),
        (
            "stages.reasoning_rl.inputs.problems=",
            ["inputs.problems=mixed_problems.problems", "inputs.problems=problems.problems"],
        ),
        ("stages.reasoning_rl.inputs.policy=cold", ["inputs.policy=cold_start.model"]),
        ("data.path=tests/data/gsm", ["data.path=tests/data/gsm8k_sample.jsonl"]),
        ("--sh", ["--shell-completion"]),
        ("no_such_thing", []),
        ("not=composable~ stages.cold", ["stages.cold_start."]),
    ],
)
def test_what_follows(monkeypatch, line, words):
    monkeypatch.chdir(ROOT)
    found = offered(line)
    assert [one[len(one) - len(word) :] for one, word in zip(found, words, strict=True)] == words


def test_every_group_and_knob_of_the_root_is_offered():
    from pipeline.compose import composed

    offers = set(offered(""))
    config, choices = composed([])
    groups = {name for name in choices if "/" not in name and "@" not in name}
    assert {f"{group}=" for group in groups} <= offers
    known = {one.rstrip("=.") for one in offers}
    assert {str(key) for key in config} <= known


def test_values_of_groups_need_no_configuration(monkeypatch):
    """The commonest question is answered without the second that composing takes."""
    monkeypatch.setattr("pipeline.completion._composed", lambda before: pytest.fail("it was composed"))
    assert "model=tiny" in offered("model=t") and offered("stag") == ["stages."]


def environment(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb", "LC_ALL": "C.UTF-8"}


def typed(shell: list[str], shell_name: str, text: str, until: str, tmp_path: Path) -> str:
    """What stands on the screen of an interactive shell after `text` was typed into it."""
    script = tmp_path / "install"
    script.write_text(SCRIPTS[shell_name])
    process, screen = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.execve(shell[0], shell, {**environment(tmp_path), "PS1": "ready> "})
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 500, 0, 0))  # a line stays a line
    seen = ""
    steps = [("ready> ", f"source {script}; echo in''stalled\n"), ("installed", text), (until, "")]
    deadline = time.monotonic() + 120
    for awaited, send in steps:
        while awaited not in seen and time.monotonic() < deadline:
            if select.select([screen], [], [], 0.2)[0]:
                seen += os.read(screen, 4096).decode(errors="replace")
        os.write(screen, send.encode())
    os.close(screen)
    os.waitpid(process, 0)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x07", "", seen)


SHELLS = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize(
    ("keys", "becomes"),
    [
        ("pipeline=r1_s\t", "pipeline=r1_style "),
        ("algorithm@stages.reasoning_rl.algorithm=gs\t", "algorithm@stages.reasoning_rl.algorithm=gspo "),
        pytest.param("G=4 stages.cold\tlearning\t", "stages.cold_start.learning_rate=", marks=pytest.mark.slow),
    ],
)
def test_typed_into_a_shell(name, keys, becomes, tmp_path):
    shell = shutil.which(name)
    if shell is None:
        pytest.skip(f"there is no {name} here")
    seen = typed([shell, *SHELLS[name]], name, f"{sys.executable} run.py {keys}", becomes, tmp_path)
    assert becomes in seen


def test_typed_into_fish(tmp_path):
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("there is no fish here")
    (tmp_path / "install").write_text(SCRIPTS["fish"])
    asked = f"source {tmp_path / 'install'}; complete -C '{sys.executable} run.py G=4 stages.cold'"
    done = subprocess.run([fish, "--no-config", "-c", asked], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["stages.cold_start."], done.stderr


def test_another_program_is_left_alone(tmp_path):
    """bash: a run.py that is not ours is not started, and the usual completion stands in."""
    (tmp_path / "run.py").write_text(f"open({str(tmp_path / 'started')!r}, 'w')")
    (tmp_path / "install").write_text(SCRIPTS["bash"])
    words = f"COMP_WORDS=({sys.executable} {tmp_path / 'run.py'} pipe) COMP_CWORD=2 COMP_LINE='x' COMP_POINT=1"
    asked = f"source {tmp_path / 'install'}; {words}; _posttrain_complete; echo ${{#COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr
    assert not (tmp_path / "started").exists()


def test_the_command_line(tmp_path):
    run = [sys.executable, str(ROOT / "run.py")]
    for shell in SCRIPTS:
        done = subprocess.run([*run, "--shell-completion", f"install={shell}"], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, SCRIPTS[shell] + "\n")
    asked = {**os.environ, "COMP_LINE": "python run.py tracker="}
    done = subprocess.run([*run, "-sc", "query=bash"], capture_output=True, text=True, env=asked)
    assert (done.returncode, done.stdout) == (0, "tracker=none\ntracker=wandb\n")
    done = subprocess.run([*run, "--shell-completion", "install=bsh"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "-> write install=bash" in done.stderr
