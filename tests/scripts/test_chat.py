"""chat.py on a small real model: lines in, answers out; modes, budget, several turns, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from scripts import chat
from stages.parts.policy.model import save_policy
from tests.stages.answering import trained_model


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    """A run whose stage general_rl made a model that answers four sums, thinking."""
    outputs = tmp_path_factory.mktemp("chat")
    stage = outputs / "runs" / "qwen3_style" / "stages" / "general_rl"
    policy = trained_model()
    save_policy(stage / "model", policy.model.state_dict(), policy)
    (stage / "artifact.json").write_text(json.dumps({"outputs": {"model": {"kind": "model", "path": "model"}}}))
    (outputs / "runs" / "qwen3_style" / "plan.json").write_text(json.dumps({"stages": [{"name": "general_rl"}]}))
    return outputs


def talk(
    outputs: Path, monkeypatch, capsys, said: str, *flags: str, run: str = "qwen3_style", stage: str = "general_rl"
):
    """(exit status, stdout, stderr)"""
    given = ["chat.py", "--output-dir", str(outputs), "--temperature", "0", *flags, run, stage]
    monkeypatch.setattr(sys, "argv", given)
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    status = chat.main()
    told = capsys.readouterr()
    return status, told.out, told.err


def test_lines_are_answered_one_by_one(outputs, monkeypatch, capsys):
    status, out, _ = talk(outputs, monkeypatch, capsys, "1+2?\n/new\n\n4+5?\n")
    assert (status, out) == (0, "<think>1+2=3</think>\\boxed{3}\n<think>4+5=9</think>\\boxed{9}\n")


def test_a_run_may_be_a_folder_and_a_conversation_has_turns(outputs, monkeypatch, capsys):
    folder = str(outputs / "runs" / "qwen3_style")
    status, out, _ = talk(outputs, monkeypatch, capsys, "1+2?\n1+2?\n" * 4, "--max-tokens", "30", run=folder)
    assert status == 0 and len(out.splitlines()) >= 8  # more turns than the context holds: the oldest are forgotten


def test_a_budget_closes_the_block(outputs, monkeypatch, capsys):
    status, out, _ = talk(outputs, monkeypatch, capsys, "1+2?\n", "--budget", "3", "--stop-text", " stop")
    assert status == 0 and out.startswith("<think>1+2 stop</think>")


def test_without_thinking_the_prompt_closes_it(outputs, monkeypatch, capsys):
    status, out, _ = talk(outputs, monkeypatch, capsys, "1+2?\n", "--no-think")
    assert status == 0 and not out.startswith("<think>")


@pytest.mark.parametrize(
    ("flags", "names", "message"),
    [
        ((), {"stage": "general_lr"}, "general_rl"),
        ((), {"run": "qwen3"}, "qwen3_style"),
        (("--budget", "8", "--max-tokens", "10", "--stop-text", "."), {}, "-> write --max-tokens 27\n"),
        (("--budget", "40", "--max-tokens", "10", "--stop-text", "."), {}, "-> write at most 29: a response has half"),
        (("--budget", "-1"), {}, "--budget"),
        (("--max-tokens", "0"), {}, "--max-tokens"),
        (
            ("--budget", "4000"),
            {},
            "-> write at most 13: a response has half of the model's context at most, 48",
        ),
        (("--budget", "30"), {}, "-> write at most 13: "),
        (("--budget", "8", "--stop-text", "." * 40), {}, "-> write a shorter --stop-text: "),
        (("--temperature", "-1"), {}, "--temperature"),
    ],
)
def test_what_is_refused(outputs, monkeypatch, capsys, flags, names, message):
    status, _, err = talk(outputs, monkeypatch, capsys, "1+2?\n", *flags, **names)
    assert status == 2 and message in err and "Traceback" not in err
