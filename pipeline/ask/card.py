"""The model card of an exported model: what it scored, how it was made, and where it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from pipeline.ask.evaluations import Evaluation
from pipeline.ask.locate import Subject, is_run
from pipeline.ask.tree import commit_of, tree
from pipeline.collect import runs_below
from pipeline.lineage import Lineage, Record
from pipeline.statistics import Estimate

# What a reader asks first about a stage, where its config has it.
SETTINGS = ("steps", "learning_rate", "prompts_per_step", "examples_per_step", "documents_per_step", "G", "samples")
USE = """    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained("{path}")
    model = AutoModelForCausalLM.from_pretrained("{path}")
    prompt = tokenizer.apply_chat_template(
        [{{"role": "user", "content": "..."}}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    print(tokenizer.decode(model.generate(**prompt, max_new_tokens=256)[0]))"""


def model_card(title: str, subject: Subject, evaluations: list[Evaluation], merged: bool) -> str:
    """README.md of the folder `title`. `merged`: it was an adapter, whose base is now part of the weights."""
    lineage, own = subject.lineage, subject.lineage.own
    output = own.outputs[lineage.output or model_port(own)]
    parts = [
        f"---\n{yaml.safe_dump(front_matter(lineage), sort_keys=False)}---",
        f"# {title}",
        _introduction(own, output, merged),
        USE.format(path=title),
        "## Held-out accuracy",
        _scores(evaluations),
        "## Recipe",
        _recipe(subject),
        "## Lineage",
        f"```\n{tree(lineage)}\n```",
        "`lineage.json` in this folder holds all of it, with every setting of every stage.",
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(lineage: Lineage) -> dict[str, Any]:
    """What the hub reads. No licence is written: it is that of the base and the data, which we do not know."""
    named = [node for record in lineage.records for node in record.config.values() if isinstance(node, dict)]
    bases = [node["name_or_path"] for node in named if node.get("source") == "pretrained"]
    data = [node["name"] for node in named if node.get("source") == "hub" and node.get("name")]
    about: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    hub = [name for name in bases if name and not Path(name).exists() and name.count("/") == 1]
    if hub:
        about["base_model"] = hub[0]
    if data:
        about["datasets"] = sorted(set(data))
    trained = [one for one in lineage.records if one.inputs and any(o["kind"] == "model" for o in one.outputs.values())]
    algorithms = {(record.config.get("algorithm") or {}).get("name") for record in trained}
    about["tags"] = sorted({record.kind for record in trained} | algorithms - {None})
    return about


def model_port(record: Record) -> str:
    return next(port for port, output in record.outputs.items() if output["kind"] == "model")


def run_of(subject: Subject) -> Path | None:
    """The run that was named, or the first that links to the result."""
    for folder in subject.folder.absolute().parents:
        if is_run(folder):
            return folder
    if subject.entry is None or subject.store is None:
        return None
    output_dir = subject.store.parent
    for run in sorted(runs_below(output_dir)):
        if any(link.resolve() == subject.entry for link in (run / "stages").glob("*")):
            return run
    return None


def _introduction(own: Record, output: dict[str, Any], merged: bool) -> str:
    size = f"{output['parameters']:,} parameters" if output.get("parameters") else "A model"
    facts = [size, str(output.get("dtype", "")), f"context of {output.get('context_length', '?')} tokens"]
    text = f"{', '.join(fact for fact in facts if fact)}. Made by the stage `{own.stage}` (`{own.kind}`) at commit "
    text += f"`{commit_of(own)}`, seed {own.seed}."
    if merged:
        text += " It was trained as an adapter; its weights are merged into those of the base."
    return text


def _scores(evaluations: list[Evaluation]) -> str:
    """A table of each evaluation at hand, with intervals."""
    if not evaluations:
        return "None is at hand: the folder was exported without the store that holds its evaluations."
    told = []
    for evaluation in evaluations:
        config = evaluation.config
        settings = [f"{config['split']} split"] if "split" in config else []
        settings += [f"{name} {config[name]}" for name in ("samples", "temperature", "top_p") if name in config]
        rows = ["| suite | metric | value | 95% interval | problems |", "|---|---|---|---|---|"]
        for key, estimate in evaluation.scores().items():
            suite, _, name = key.rpartition("/")
            rows.append(f"| {suite} | {name} | {_cells(estimate)} | {estimate.problems} |")
        told.append("\n".join([*rows, "", f"Problems of the {', '.join(settings)}; bootstrapped over problems."]))
    return "\n\n".join(told)


def _cells(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f}% | {100 * estimate.low:.1f} – {100 * estimate.high:.1f}"


def _recipe(subject: Subject) -> str:
    """The command where a run is known, the stages from the sources up, and the config of the last one."""
    parts = []
    run = run_of(subject)
    summary = run / "summary.json" if run is not None else None
    if summary is not None and summary.exists() and (command := json.loads(summary.read_text()).get("command")):
        parts.append(f"    {command}")
    rows = ["| stage | kind | seed | settings |", "|---|---|---|---|"]
    for record in in_order(subject.lineage):
        settings = [f"{name} {record.config[name]}" for name in SETTINGS if name in record.config]
        algorithm = record.config.get("algorithm") or {}
        settings += [str(algorithm["name"])] if "name" in algorithm else []
        settings += [f"{name} {algorithm[name]}" for name in ("beta", "epsilon") if name in algorithm]
        rows.append(f"| {record.stage} | {record.kind} | {record.seed} | {', '.join(settings)} |")
    parts.append("\n".join(rows))
    config = yaml.safe_dump(subject.lineage.own.config, sort_keys=False)
    parts.append(f"<details><summary>every setting of {subject.lineage.own.stage}</summary>\n\n```yaml\n{config}```")
    return "\n\n".join([*parts, "</details>"])


def in_order(lineage: Lineage) -> list[Record]:
    """Records with every maker before its readers."""
    found: list[Record] = []

    def visit(record: Record) -> None:
        for origin in (*record.inputs.values(), *record.files.values()):
            maker = lineage.maker(origin)
            if maker is not None and maker not in found:
                visit(maker)
        if record not in found:
            found.append(record)

    visit(lineage.own)
    return found
