"""Inputs that lie on the hub, brought here before a stage starts: at the commit that the plan has fixed, into the
cache of huggingface_hub (HF_HOME), where the next stage and the next run find them without a network.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline.artifacts import FILES, Artifact, StageFailed
from stages.parts.policy.facts import model_facts

# Neither weights in other formats nor pictures.
PATTERNS = {
    "model": ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.py"],
    "dataset": ["*.json", "*.jsonl"],
}


def at_hand(inputs: dict[str, Artifact]) -> dict[str, Artifact]:
    """The same inputs, those that the plan wired to `hub:ORG/NAME@COMMIT` as folders. Raises StageFailed where one
    cannot be had or is not what its port takes."""
    return {port: _brought(one) if str(one.path).startswith("hub:") else one for port, one in inputs.items()}


def _brought(artifact: Artifact) -> Artifact:
    wired = str(artifact.path)
    name, _, commit = wired.removeprefix("hub:").partition("@")
    folder = download(artifact.kind.partition(":")[0], name, commit)
    missing = [file for file in FILES[artifact.kind] if not (folder / file).exists()]
    if missing:
        other = "take it by a base_model stage" if artifact.kind == "model" else "take rows of other forms by data=hub"
        raise StageFailed(f"{wired} is no {artifact.kind}: it has no {', '.join(missing)}; {other}")
    known = model_facts(folder) if artifact.kind == "model" else {}
    return dataclasses.replace(artifact, path=folder, facts=known | artifact.facts)


def download(kind: str, name: str, commit: str | None) -> Path:
    """The folder of a model or dataset (`kind`) of the hub. Raises StageFailed where it cannot be had."""
    from huggingface_hub import snapshot_download  # only where something lies there
    from huggingface_hub.errors import HTTPError

    try:
        return Path(snapshot_download(name, repo_type=kind, revision=commit, allow_patterns=PATTERNS[kind]))
    except (HTTPError, OSError) as error:
        cause = error.__cause__ or error  # the client says of a missing network that a file is not in its cache
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0].rstrip(". ")
        type_of = " --repo-type dataset" if kind == "dataset" else ""
        raise StageFailed(
            f"{name} cannot be downloaded ({reason}); where there is a network, run"
            f" hf download {name}{type_of} --revision {commit}, or name a folder instead"
        ) from error
