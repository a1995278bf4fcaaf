"""Machines of a cluster: how ranks are spread over them, hostfiles, and those that cannot be reached."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pipeline import hosts
from pipeline.compose import compose
from pipeline.config import LauncherConfig
from pipeline.hosts import host_faults, per_machine, read_hostfile, spread_faults, used_machines, why_unreachable
from pipeline.messages import Refused
from pipeline.plan import make_plan


def hostfile(tmp_path: Path, text: str) -> LauncherConfig:
    path = tmp_path / "hostfile"
    path.write_text(text)
    return LauncherConfig(kind="deepspeed", hostfile=str(path))


def test_ranks_that_cannot_be_spread_are_refused() -> None:
    with pytest.raises(ValueError, match="3 ranks cannot be spread evenly over 2 machines"):
        per_machine(3, 2)
    (fault,) = spread_faults(LauncherConfig(kind="torchrun", hosts=["a", "b"]), "launcher.num_ranks", 3)
    assert (fault.problem, fault.remedy) == (
        "is 3, which 2 machines do not share evenly",
        "write launcher.num_ranks=2 or 4",
    )


def test_a_stage_of_one_rank_uses_the_first_machine_alone() -> None:
    cfg = LauncherConfig(kind="torchrun", hosts=["a", "b"])
    assert (used_machines(cfg, 1), used_machines(cfg, 8)) == (["a"], ["a", "b"])
    assert spread_faults(cfg, "stages.problems.num_ranks", 1) == []


def test_a_hostfile_is_read_and_its_slots_are_enough(tmp_path: Path) -> None:
    cfg = hostfile(tmp_path, "# ours\na slots=4\n\nb slots=2  # small\n")
    assert read_hostfile(Path(cfg.hostfile)) == {"a": 4, "b": 2}
    (fault,) = spread_faults(cfg, "launcher.num_ranks", 8)
    assert "4 a machine, and b has 2 slots" in fault.problem and fault.remedy == "write launcher.num_ranks=4"
    assert spread_faults(cfg, "launcher.num_ranks", 4) == []


@pytest.mark.parametrize(("text", "told"), [("a 4\n", "'a 4' is not NAME slots=NUMBER"), ("\n", "names no machine")])
def test_a_hostfile_that_is_none(tmp_path: Path, text: str, told: str) -> None:
    (fault,) = host_faults(hostfile(tmp_path, text))
    assert fault.key == "launcher.hostfile" and told in fault.problem


def test_a_hostfile_that_is_not_there(tmp_path: Path) -> None:
    (fault,) = host_faults(LauncherConfig(kind="deepspeed", hostfile="/nowhere/hostfile"))
    assert "cannot be read" in fault.problem
    overrides = ["launcher=deepspeed", "launcher.hostfile=/nowhere/hostfile", f"output_dir={tmp_path}"]
    with pytest.raises(Refused) as refused:  # the rest of the plan can do without it
        make_plan(compose([*overrides, "launcher.num_ranks=2"]))
    assert [fault.key for fault in refused.value.faults] == ["launcher.hostfile"]


@pytest.mark.parametrize(
    ("cfg", "key", "remedy"),
    [
        (LauncherConfig(kind="torchrun", hostfile="hosts"), "launcher.hostfile", "launcher.hosts=[A,B]"),
        (LauncherConfig(kind="local", hosts=["elsewhere"]), "launcher.hosts", "choose launcher=torchrun"),
    ],
)
def test_machines_that_the_launcher_does_not_read(cfg: LauncherConfig, key: str, remedy: str) -> None:
    (fault,) = host_faults(cfg)
    assert fault.key == key and remedy in fault.remedy


@pytest.mark.parametrize("kind", ["torchrun", "deepspeed"])
def test_an_unreachable_machine_is_named_with_the_way_to_try(kind: str) -> None:
    (fault,) = host_faults(LauncherConfig(kind=kind, hosts=["localhost", "no-such-machine.invalid"]))
    assert fault.key == "launcher.hosts" and fault.problem.startswith("no-such-machine.invalid cannot be reached (")
    assert "ssh -o BatchMode=yes no-such-machine.invalid true" in fault.remedy


def test_a_port_that_answers_is_reachable_and_a_closed_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told:
        stdout = ""

    monkeypatch.setattr(hosts.subprocess, "run", lambda *a, **k: Told)
    with socket.create_server(("127.0.0.1", 0)) as server:
        Told.stdout = f"hostname 127.0.0.1\nport {server.getsockname()[1]}\n"
        assert why_unreachable("node") == ""
    assert why_unreachable("node") == "Connection refused"


def test_this_machine_alone_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "why_unreachable", lambda host: 1 / 0)
    assert host_faults(LauncherConfig(kind="torchrun")) == []
    assert host_faults(LauncherConfig(kind="deepspeed", hosts=["localhost"])) == []


@pytest.mark.parametrize("nodes", [-1, 0, "abc", True, 1.5])
def test_a_number_of_nodes_that_is_none(nodes: object) -> None:
    (fault,) = host_faults(LauncherConfig(kind="slurm", options={"nodes": nodes}))
    assert (fault.key, fault.remedy) == ("launcher.options.nodes", "write a whole number, 1 or more")
    assert host_faults(LauncherConfig(kind="slurm", options={"nodes": 2})) == []
