"""`python run.py --help`: every group with what it decides, every file with its own first sentence.

The page itself is conf/hydra/help/posttrain.yaml; the choices are read from the YAML files, so that a new one is in the
manual as soon as it is there. Printed without Hydra, which copies every schema some hundred times to list the groups
(4 s of processor time).
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import yaml

from pipeline.messages import CONF

# In the order in which people choose. A group that is not here is refused by a test.
GROUPS = {
    "pipeline": "the recipe: which stages there are, and what each of them reads",
    "experiment": "a published or named setting laid over a recipe; several: experiment=[dapo,smoke]",
    "model": "what the chain starts from; brings its own scale",
    "student": "what a distillation starts from",
    "data": "where the problems come from",
    "scale": "the numbers of every stage: steps, batches, lengths",
    "algorithm": "the loss of every RL stage",
    "engine": "how parameters are trained",
    "launcher": "where the processes of a stage run",
    "tracker": "where metrics go beside metrics.jsonl",
}
OF_PIPELINES = {
    "stage": "a kind of stage; a pipeline writes  /stage@stages.NAME: KIND",
    "suite": "a suite beside reasoning and general",
}
WIDTH = 118
INDENT = 6


def page() -> str:
    """What Hydra would make of the template."""
    node = yaml.safe_load((CONF / "hydra" / "help" / "posttrain.yaml").read_text())
    text = node["template"].replace("${manual:}", choices())
    for part in ("header", "footer"):
        text = text.replace(f"${{hydra.help.{part}}}", node[part])
    return text.replace("$$", "$").rstrip()


def choices() -> str:
    """All groups, for Hydra's template (where a $ would start a name)."""
    told = [_group(name, f"{name}=NAME", about) for name, about in GROUPS.items()]
    told.append("For one stage:  engine@stages.general_rl.engine=zero3    algorithm@stages.reasoning_rl.algorithm=dapo")
    told += [_group(name, f"{name} (in a pipeline)", about) for name, about in OF_PIPELINES.items()]
    return "\n\n".join(told).replace("$", "$$")


def _group(name: str, title: str, about: str) -> str:
    files = sorted((CONF / name).glob("*.yaml"))
    widest = max(len(path.stem) for path in files)
    below = " " * (INDENT + widest + 2)
    lines = [f"{title:27} {about}"]
    for path in files:
        start = f"{' ' * INDENT}{path.stem:{widest}}  "
        lines += textwrap.wrap(sentence(path), WIDTH, initial_indent=start, subsequent_indent=below, max_lines=2)
    return "\n".join(lines)


def sentence(path: Path) -> str:
    """The first sentence of the comment that a file opens with."""
    lines = []
    for line in path.read_text().splitlines():
        if line.startswith("# @package"):
            continue
        if not line.startswith("#") or line[1:3] in ("", "  "):  # a blank or indented line of the comment: no prose
            break
        lines.append(line.lstrip("# "))
    text = " ".join(lines).removesuffix(":")
    end = re.search(r"(?<!Dr)\.(\s|$)", text)  # "Dr. GRPO" is no end
    return text[: end.start()] if end else text
