"""The machines of launcher=torchrun, deepspeed and slurm: how many a stage uses, and whether they can be reached.

A stage of fewer ranks than machines (an evaluation on one rank) uses only the first machines. Reaching is tried before
anything runs: the name and port that ssh itself would use, one second each, all of them at once.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.artifacts import Fault, is_count
from pipeline.config import LauncherConfig

CONNECT_SECONDS = 1.0


def local_names() -> set[str]:
    return {"localhost", "127.0.0.1", socket.gethostname()}


def per_machine(ranks: int, machines: int) -> int:
    """Ranks a machine. Raises ValueError where they cannot be spread evenly (the plan refuses that before)."""
    if ranks % machines:
        raise ValueError(f"{ranks} ranks cannot be spread evenly over {machines} machines")
    return ranks // machines


def machines(cfg: LauncherConfig) -> list[str]:
    """All machines by name; one without a name of its own where the launcher stays here."""
    if cfg.kind == "slurm":
        nodes = cfg.options.get("nodes")
        return ["node"] * (nodes if is_count(nodes) else len(cfg.hosts) or 1)
    if cfg.kind == "deepspeed" and cfg.hostfile is not None:
        return list(read_hostfile(Path(cfg.hostfile)))
    return list(cfg.hosts) if cfg.kind in ("torchrun", "deepspeed") and cfg.hosts else ["localhost"]


def used_machines(cfg: LauncherConfig, ranks: int) -> list[str]:
    """The machines that a stage of `ranks` ranks runs on."""
    return machines(cfg)[: max(1, ranks)]


def read_hostfile(path: Path) -> dict[str, int]:
    """Machine -> slots, of lines `name slots=8`. Raises ValueError, with the line that is none."""
    found: dict[str, int] = {}
    for line in path.read_text().splitlines():
        text = line.split("#")[0].strip()
        if not text:
            continue
        host, _, slots = text.partition(" slots=")
        if not slots.strip().isdecimal():
            raise ValueError(f"'{text}' is not NAME slots=NUMBER")
        found[host.strip()] = int(slots)
    return found


def hostfile_faults(cfg: LauncherConfig) -> list[Fault]:
    """What is wrong with the file itself; until that is put right there are no machines to speak of."""
    if cfg.kind != "deepspeed" or cfg.hostfile is None:
        return []
    try:
        found = read_hostfile(Path(cfg.hostfile))
    except (OSError, ValueError) as reason:
        return [Fault("launcher.hostfile", f"cannot be read: {reason}", "name a file of lines NAME slots=8")]
    if not found:
        problem = f"'{cfg.hostfile}' names no machine"
        return [Fault("launcher.hostfile", problem, "write a line a machine: NAME slots=8")]
    return []


def host_faults(cfg: LauncherConfig) -> list[Fault]:
    """Machines that the launcher does not read, a hostfile that cannot be read, machines that cannot be reached."""
    if cfg.hostfile is not None and cfg.kind != "deepspeed":
        remedy = "choose launcher=deepspeed, or write launcher.hosts=[A,B] with launcher=torchrun"
        return [Fault("launcher.hostfile", f"is not read by launcher={cfg.kind}", remedy)]
    if cfg.hosts and cfg.kind in ("local", "inline"):
        remedy = "choose launcher=torchrun or launcher=deepspeed"
        return [Fault("launcher.hosts", f"launcher={cfg.kind} stays on this machine", remedy)]
    nodes = cfg.options.get("nodes")
    if cfg.kind == "slurm" and nodes is not None and not is_count(nodes):
        return [Fault("launcher.options.nodes", f"is '{nodes}'", "write a whole number, 1 or more")]
    if cfg.kind not in ("torchrun", "deepspeed"):
        return []
    if faults := hostfile_faults(cfg):
        return faults
    key = "launcher.hosts" if cfg.hostfile is None else "launcher.hostfile"
    others = [host for host in dict.fromkeys(machines(cfg)) if host not in local_names()]
    if not others:
        return []
    if shutil.which("ssh") is None:
        return [Fault(key, "other machines are started through ssh, which is not here", "install an ssh client")]
    with ThreadPoolExecutor(max_workers=min(32, len(others))) as pool:
        problems = dict(zip(others, pool.map(why_unreachable, others)))
    remedy = f"see that `ssh -o BatchMode=yes {{host}} true` works, or leave it out of {key}"
    return [
        Fault(key, f"{host} cannot be reached ({problem})", remedy.format(host=host))
        for host, problem in problems.items()
        if problem
    ]


def why_unreachable(host: str) -> str:
    """ "" where something answers at the ssh port of `host`, as the user's ssh configuration resolves it."""
    told = subprocess.run(["ssh", "-G", "--", host], capture_output=True, text=True, check=False)
    settings = dict(line.partition(" ")[::2] for line in told.stdout.splitlines())
    if "proxycommand" in settings or "proxyjump" in settings:
        return ""  # the way leads through another machine; ssh will tell
    address = settings.get("hostname", host), int(settings.get("port", "22"))
    try:
        with socket.create_connection(address, timeout=CONNECT_SECONDS):
            return ""
    except OSError as reason:
        return str(reason.strerror or reason)


def spread_faults(cfg: LauncherConfig, key: str, ranks: int) -> list[Fault]:
    """Ranks that cannot be spread evenly over the machines, or that a hostfile has no slots for."""
    names = used_machines(cfg, ranks)
    if ranks % len(names):
        fitting = f"{ranks // len(names) * len(names)} or {(ranks // len(names) + 1) * len(names)}"
        problem = f"is {ranks}, which {len(names)} machines do not share evenly"
        return [Fault(key, problem, f"write {key}={fitting}")]
    if cfg.kind == "deepspeed" and cfg.hostfile is not None:
        slots, each = read_hostfile(Path(cfg.hostfile)), ranks // len(names)
        if small := [name for name in names if slots[name] < each]:
            room = min(slots.values()) * len(slots)
            problem = f"is {ranks}, {each} a machine, and {small[0]} has {slots[small[0]]} slots in {cfg.hostfile}"
            return [Fault(key, problem, f"write {key}={room}")]
    return []
