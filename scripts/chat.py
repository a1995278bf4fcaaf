"""Talk to the model of any stage: streaming, over several turns, thinking or not, with a thinking budget.

    python scripts/chat.py qwen3_style general_rl                    a run by name or folder, and one of its stages
    python scripts/chat.py --budget 64 qwen3_style general_rl        at most 64 tokens of thinking a response
    python scripts/chat.py --no-think qwen3_style general_rl         the prompt ends with an empty think block
    echo '3+4-2=? /no_think' | python scripts/chat.py qwen3_style general_rl

A line is a turn, `/think` and `/no_think` in it switch modes where the model has learned to; `/new` begins again, an
empty line or the end of the input ends. Thinking is dim on a terminal; what a budget writes stands in reverse.
Exit status: 0; 2 where there is no such run, stage or model, or a budget that does not fit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.artifacts import Fault, StageFailed
from pipeline.ask.locate import model_folder, run_at, stages_of
from pipeline.messages import Refused, suggest

if TYPE_CHECKING:
    from stages.parts.rollouts.config import SamplingConfig

SHORT_STOP = " no time left, so"  # for a context in which a sentence takes too much room
DIM, REVERSE, RESET = "\x1b[2m", "\x1b[7m", "\x1b[0m"


def main() -> int:
    arguments = parse()
    try:
        folder = stage_model(arguments.run, arguments.stage, arguments.output_dir)
        check_numbers(arguments)
        chat(folder, arguments)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 2
    except StageFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, help="tokens of thinking a response, at most")
    parser.add_argument("--no-think", action="store_true", help="close the think block in the prompt")
    parser.add_argument("--stop-text", help="what closes the block where the budget is used up")
    parser.add_argument("--system", help="a system prompt")
    parser.add_argument(
        "--max-tokens", type=int, help="of a response; default: half of the model's context, 2048 at most"
    )
    parser.add_argument("--temperature", type=float, default=0.6, help="0: always the likeliest token")
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"), help="where runs are looked up by name")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("stage", metavar="STAGE")
    return parser.parse_args()


def stage_model(run: str, stage: str, outputs: Path) -> Path:
    """The folder of the stage's model. Raises Refused."""
    found = run_at(run, outputs)
    names = stages_of(found)
    if stage not in names:
        raise Refused([Fault("STAGE", f"{found} has no result of '{stage}'", suggest(stage, names))])
    return model_folder(str(found / "stages" / stage))


def check_numbers(arguments: argparse.Namespace) -> None:
    """What can be told without a model. Raises Refused."""
    from stages.parts.rollouts.config import SamplingConfig

    asked = SamplingConfig(arguments.temperature, arguments.top_p)
    faults = [Fault(f"--{f.key.replace('_', '-')}", f.problem, f.remedy) for f in asked.faults()]
    for flag, least in (("--max-tokens", 1), ("--budget", 0)):
        given = getattr(arguments, flag.strip("-").replace("-", "_"))
        if given is not None and given < least:
            faults.append(Fault(flag, f"is {given}", f"write at least {least}"))
    if faults:
        raise Refused(faults)


def check_budget(policy: Any, arguments: argparse.Namespace) -> None:
    """Whether thinking, what closes it and an answer fit into a response. Raises Refused, StageFailed."""
    from stages.parts.rollouts.budget import stop_of
    from stages.parts.rollouts.config import SHORT_ANSWER, room_faults

    sampling = sampling_of(policy, arguments)
    stop = stop_of(policy.tokenizer, replace(sampling, max_response_tokens=sys.maxsize), policy.end_ids)
    if stop is None:
        return
    length, half = len(stop.text_ids), context_of(policy) // 2
    for fault in room_faults("--budget", stop.budget, sampling.max_response_tokens, length):
        most = half - 1 - length - SHORT_ANSWER
        remedy = fault.remedy.replace("max_response_tokens=", "--max-tokens ")
        if stop.budget > most:  # more --max-tokens would not do
            less = f"write at most {most}" if most >= 0 else "write a shorter --stop-text"
            remedy = f"{less}: a response has half of the model's context at most, {half} tokens"
        raise Refused([Fault(fault.key, fault.problem, remedy)])


def chat(folder: Path, arguments: argparse.Namespace) -> None:
    """Read turns until the input ends."""

    from transformers.utils.logging import disable_progress_bar

    from stages.parts.policy.model import load_policy
    from stages.parts.rollouts.engine import transformers_engine

    disable_progress_bar()
    policy = load_policy(folder)
    engine = transformers_engine(policy)
    check_budget(policy, arguments)
    opening = [{"role": "system", "content": arguments.system}] if arguments.system else []
    messages, number = list(opening), 0
    for line in turns():
        if line == "/new":
            messages = list(opening)
            continue
        messages.append({"role": "user", "content": line})
        text = respond(engine, policy, messages, arguments, number)
        messages.append({"role": "assistant", "content": text})
        number += 1


def context_of(policy: Any) -> int:
    return policy.model.config.get_text_config().max_position_embeddings


def response_limit(policy: Any, arguments: argparse.Namespace) -> int:
    """Tokens of a response: half of the context at most, so that there is something to answer to."""
    half = context_of(policy) // 2
    return min(arguments.max_tokens or min(2048, half), half)


def sampling_of(policy: Any, arguments: argparse.Namespace) -> SamplingConfig:
    """What is asked for, with what the model has room for."""
    from stages.parts.rollouts.config import STOP_TEXT, SamplingConfig

    stop_text = arguments.stop_text or (STOP_TEXT if context_of(policy) >= 4096 else SHORT_STOP)
    limit = response_limit(policy, arguments)
    return SamplingConfig(arguments.temperature, arguments.top_p, 0, limit, arguments.budget, stop_text)


def turns() -> Iterator[str]:
    """Lines of the user; with a prompt only where somebody is there to see it."""
    interactive = sys.stdin.isatty()
    while True:
        if interactive:
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line or (interactive and not line.strip()):
            return
        if line.strip():
            yield line.strip()


def respond(
    engine: Any, policy: Any, messages: list[dict[str, str]], arguments: argparse.Namespace, number: int
) -> str:
    """Stream one response; its text. The oldest turns are forgotten once the conversation outgrows the context."""
    from stages.parts.data.template import render_prompt
    from stages.parts.rollouts.types import Request

    sampling = sampling_of(policy, arguments)
    prompt = render_prompt(policy.tokenizer, messages, not arguments.no_think)
    while len(prompt) + sampling.max_response_tokens > context_of(policy) and len(messages) > 1:
        del messages[int(messages[0]["role"] == "system")]
        prompt = render_prompt(policy.tokenizer, messages, not arguments.no_think)
    shown = Shown(policy.tokenizer, policy.end_ids, sys.stdout.isatty())
    for token, forced in engine.stream(Request("chat", number, prompt), sampling, (arguments.seed, "chat", number)):
        shown.add(token, forced)
    return shown.end()


class Shown:
    """A response on its way to the screen: whole characters only, thinking and forced text marked on a terminal."""

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], styled: bool) -> None:
        self.tokenizer, self.end_ids, self.styled = tokenizer, end_ids, styled
        self.ids: list[int] = []
        self.text = ""

    def add(self, token: int, forced: bool) -> None:
        if token in self.end_ids:
            return
        self.ids.append(token)
        text = self.tokenizer.decode(self.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if text.endswith("�"):  # the first bytes of a character
            return
        piece, self.text = text[len(self.text) :], text
        thinking = text.rfind("<think>") > text.rfind("</think>") or piece.endswith("</think>")
        style = (REVERSE if forced else DIM if thinking else "") if self.styled else ""
        print(f"{style}{piece}{RESET if style else ''}", end="", flush=True)

    def end(self) -> str:
        print(flush=True)
        return self.text


if __name__ == "__main__":
    sys.exit(main())
