"""The same prompt after every stage: what it prints is what the models say, and the log-probs are theirs."""

from __future__ import annotations

import math
import shutil
import sys

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts import compare as script

ANSWER = "<think>4+5=9</think>\\boxed{9}"


def ask(monkeypatch, capsys, outputs, *arguments) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["compare.py", "--output-dir", str(outputs), *map(str, arguments)])
    status = script.main()
    said = capsys.readouterr()
    return status, said.out, said.err


def rows(out: str) -> dict[str, list[str]]:
    """stage -> cells, first lines of cells only."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in cells if row[0]}


def test_every_stage_with_a_model_answers(monkeypatch, capsys, outputs):
    status, out, _ = ask(monkeypatch, capsys, outputs, "--answer", ANSWER, "sums", "4+5?")
    assert status == 0
    told = rows(out)
    assert list(told) == ["base", "tuned"]
    assert told["tuned"][0] == ANSWER  # what it was taught
    assert told["tuned"][1].isdigit() and told["base"][1].endswith(", cut")  # one has learnt to end, the other not
    base, tuned = (float(told[stage][2]) for stage in told)
    assert base < -50 < -5 < tuned < 0


def test_the_logp_is_that_of_the_answer_and_its_end(outputs, monkeypatch, capsys):
    """Against a loop over the model's own logits: <|user|>4+5?<|end|><|assistant|>...<|end|>, the latter scored."""
    folder = outputs / "store/base_model-base/model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("<|user|>4+5?<|end|><|assistant|>", add_special_tokens=False)["input_ids"]
    answer = tokenizer(f"{ANSWER}<|end|>", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt + answer])).logits[0]
    logps = [F.log_softmax(logits_TV[len(prompt) - 1 + t], -1)[token].item() for t, token in enumerate(answer)]
    told = rows(ask(monkeypatch, capsys, outputs, "--answer", ANSWER, "--stages", "base", "sums", "4+5?")[1])["base"]
    assert math.isclose(float(told[2]), sum(logps), abs_tol=0.01)
    assert math.isclose(float(told[3]), sum(logps) / len(answer), abs_tol=0.001)


def test_sampling_follows_its_seed(monkeypatch, capsys, outputs):
    flags = ("--temperature", "1", "--samples", "3", "--max-tokens", "8", "--stages", "base", "sums", "4+5?")
    first, again, other = (ask(monkeypatch, capsys, outputs, "--seed", s, *flags)[1] for s in (1, 1, 2))
    assert first == again != other
    assert first.count("8, cut") == 3


def test_a_response_is_cut_where_the_context_is_full(monkeypatch, capsys, outputs):
    """The context of these models is 96 tokens."""
    status, out, _ = ask(monkeypatch, capsys, outputs, "--stages", "base", "sums", "4" * 80)
    assert (status, rows(out)["base"][1]) == (0, f"{96 - 83}, cut")
    status, _, err = ask(monkeypatch, capsys, outputs, "sums", "4" * 100)
    assert status == 1
    assert err.splitlines()[-1] == "base: a prompt of 103 tokens fills its context of 96: write a shorter one"


def test_control_characters_are_written_out():
    assert script.printable("a\x1b[31m\nb\x00") == "a\\x1b[31m\nb\\x00"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sum", "4+5?"], "sum: there is no such run -> write sums (there are: sums)"),
        (["--stages", "tune", "sums", "?"], "--stages: 'tune' made no model in "),
        (["--temperature", "-1", "sums", "?"], "--temperature: is -1.0 -> write 0 (greedy) or more, 1.0"),
        (["--samples", "4", "sums", "?"], "--samples: are all the same at temperature 0 -> write --temperature 1, or"),
        (["--max-tokens", "0", "sums", "?"], "--max-tokens: is 0 -> write at least 1"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, capsys, outputs, arguments, says):
    status, out, err = ask(monkeypatch, capsys, outputs, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_a_run_without_its_results(monkeypatch, capsys, outputs, tmp_path):
    shutil.copytree(outputs / "runs", tmp_path / "runs", symlinks=True)
    shutil.rmtree(tmp_path / "runs/sums/stages")
    status, _, err = ask(monkeypatch, capsys, tmp_path, "sums", "4+5?")
    assert status == 2
    assert err.endswith("has no model yet -> let the run come to its first one\n")
