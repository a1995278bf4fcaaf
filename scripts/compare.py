"""One prompt, answered after every stage of a run: what each stage made of it, side by side.

    python scripts/compare.py r1_style "What is 3 + 4 - 2?"
    python scripts/compare.py --answer "<think>3 + 4 = 7</think>\\boxed{5}" r1_style "What is 3 + 4 - 2?"
    python scripts/compare.py --temperature 1 --samples 4 --seed 1 --stages base,general_rl outputs/runs/r1_style "..."

Greedy unless a temperature is given. Sampling noise is the same for every stage, so what differs is the models. With
--answer each model also tells the log-probability of that answer after the prompt, its end token included: the sum, and
the mean of a token, in nats (at temperature 1, whatever is sampled at). Exit status: 0; 1 where a model cannot answer;
2 bad input.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["TQDM_DISABLE"] = "1"  # bars of libraries

from pipeline.artifacts import Fault, StageFailed, model_folder_fault
from pipeline.ask.locate import models_of, refused, run_at
from pipeline.ask.script import run_script
from pipeline.messages import Refused, nearest
from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.types import Request, Rollout

WIDTH = 120  # where the output is no terminal
FLAGS = {"max_response_tokens": "--max-tokens", "top_p": "--top-p", "temperature": "--temperature"}


@dataclass
class Answers:
    """What one model says."""

    stage: str
    rollouts: list[Rollout]
    logp: float | None = None  # nats, of the given answer
    answer_tokens: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer", help="an answer whose log-probability each model tells")
    parser.add_argument("--system", help="a system prompt")
    parser.add_argument("--stages", help="only these, with commas; else every stage that made a model")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (greedy) is the default")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--samples", type=int, default=1, help="responses of each model")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling noise")
    parser.add_argument("--max-tokens", type=int, default=256, help="of a response, less where the context is full")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"), help="where runs are looked up by name")
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    parser.add_argument("prompt", metavar="PROMPT")
    arguments = parser.parse_args()
    try:
        models = chosen(run_at(arguments.run, arguments.output_dir), arguments.stages)
        sampling = checked_sampling(arguments)
        if not arguments.prompt.strip():
            raise refused("PROMPT", "is empty", "ask something")
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 2
    messages = [{"role": "user", "content": arguments.prompt}]
    if arguments.system:
        messages.insert(0, {"role": "system", "content": arguments.system})
    answers = []
    for stage, folder in models.items():
        try:
            answers.append(ask(stage, folder, messages, sampling, arguments))
        except StageFailed as failure:
            print(f"{stage}: {failure}", file=sys.stderr)
            return 1
    show(answers, arguments.answer is not None)
    return 0


def chosen(run: Path, stages: str | None) -> dict[str, Path]:
    """stage -> the folder of its model, in the order of the plan. Raises Refused."""
    models = models_of(run)
    if not models:
        raise refused(str(run), "has no model yet", "let the run come to its first one")
    wanted = [name.strip() for name in stages.split(",")] if stages else list(models)
    for name in wanted:
        if name not in models:
            remedy = f"write {nearest(name, models) or 'one of them'} (there are: {', '.join(models)})"
            raise refused("--stages", f"'{name}' made no model in {run}", remedy)
        if fault := model_folder_fault(models[name]):
            raise Refused([replace(fault, key=name)])
    return {name: models[name] for name in wanted}


def checked_sampling(arguments: argparse.Namespace) -> SamplingConfig:
    sampling = SamplingConfig(arguments.temperature, arguments.top_p, 0, arguments.max_tokens)
    faults = [replace(fault, key=FLAGS[fault.key]) for fault in sampling.faults()]
    if arguments.samples < 1:
        faults.append(Fault("--samples", f"is {arguments.samples}", "write at least 1"))
    if arguments.samples > 1 and arguments.temperature == 0:
        faults.append(Fault("--samples", "are all the same at temperature 0", "write --temperature 1, or leave it out"))
    if faults:
        raise Refused(faults)
    return sampling


def ask(stage: str, folder: Path, messages: list[dict[str, str]], sampling: SamplingConfig, arguments: Any) -> Answers:
    """Sample from one model, and score the given answer. One model is in memory at a time."""
    from stages.parts.data.template import render_prompt
    from stages.parts.policy.model import load_policy
    from stages.parts.rollouts.engine import transformers_engine
    from stages.parts.rollouts.requests import attach_texts

    policy = load_policy(folder, trust_remote_code=arguments.trust_remote_code)
    prompt_ids = render_prompt(policy.tokenizer, messages)
    limit = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    room = sampling.max_response_tokens if limit is None else min(sampling.max_response_tokens, limit - len(prompt_ids))
    if room < 1:
        raise StageFailed(f"a prompt of {len(prompt_ids)} tokens fills its context of {limit}: write a shorter one")
    requests = [Request("prompt", index, prompt_ids) for index in range(arguments.samples)]
    noise = (arguments.seed, "compare", 0)
    rollouts = transformers_engine(policy).generate(requests, replace(sampling, max_response_tokens=room), noise)
    attach_texts(policy, rollouts)
    answers = Answers(stage, rollouts)
    if arguments.answer is not None:
        answers.logp, answers.answer_tokens = answer_logp(policy, messages, arguments.answer)
    return answers


def answer_logp(policy: Any, messages: list[dict[str, str]], answer: str) -> tuple[float, int]:
    """log p(answer and end token | prompt) in nats, and how many tokens that are."""
    from stages.parts.data.template import render_conversation
    from stages.parts.policy.batch import pad_batch
    from stages.parts.policy.reference import TorchReference

    ids, mask = render_conversation(policy.tokenizer, [*messages, {"role": "assistant", "content": answer}])
    weights = [float(flag) for flag in mask]
    batch = pad_batch([ids], [weights], policy.pad_id, policy.device)
    logps_BT = TorchReference(policy).logps(batch).logps_BT
    return float(logps_BT.sum()), int(sum(weights))


def show(answers: list[Answers], scored: bool) -> None:
    """A row a stage; the models' own text is printed as it is, control characters written out."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    table = Table("stage", "response", show_lines=True)
    table.add_column("tokens", justify="right")
    if scored:
        table.add_column("log p(answer)", justify="right")
        table.add_column("a token", justify="right")
    for one in answers:
        for index, rollout in enumerate(one.rollouts):
            cells: list[Any] = [one.stage if index == 0 else "", Text(printable(rollout.text)), tokens(rollout)]
            if scored:
                first = index == 0 and one.logp is not None
                cells += [f"{one.logp:.2f}", f"{one.logp / one.answer_tokens:.3f}"] if first else ["", ""]
            table.add_row(*cells)
    console.print(table)


def tokens(rollout: Rollout) -> str:
    return f"{len(rollout.response_ids)}{', cut' if rollout.truncated else ''}"


def printable(text: str) -> str:
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


if __name__ == "__main__":
    run_script(main)
