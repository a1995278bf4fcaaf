"""scripts/audit.py: rows as people see them, the verdict and the exit status."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from scripts import audit as script
from stages.parts.data.audit import Row, audit
from stages.parts.data.template import render_conversation
from stages.parts.data.tokenizer import END_IDS, build_tokenizer
from tests.stages.digits import digit_inputs
from tests.stages.ppo.test_run import CONFIG as ppo_config
from tests.stages.rl.test_run import CONFIG as rl_config

CONVERSATION = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "<think>1</think>\\boxed{2}"}]


def run(monkeypatch, capsys, rows) -> tuple[int, str]:
    stage = SimpleNamespace(kind="rl", cfg=SimpleNamespace(max_response_tokens=100))
    monkeypatch.setattr(script, "prepare", lambda name, overrides: SimpleNamespace(stage=stage, inputs={}))
    monkeypatch.setitem(script.READERS, "rl", lambda _: (rows, "sequence_mean", build_tokenizer(), set(END_IDS)))
    monkeypatch.setattr(sys, "argv", ["audit.py", "--stage", "reasoning_rl", "--rows", "2"])
    return script.main(), capsys.readouterr().out


def rows_of(advantages: list[float]) -> list[Row]:
    ids, mask = render_conversation(build_tokenizer(), CONVERSATION)
    return [Row(ids, list(mask), [a * on for on in mask]) for a in advantages]


def test_tokens_stand_where_the_loss_sees_them(monkeypatch, capsys):
    status, out = run(monkeypatch, capsys, rows_of([1.0, -0.5, 0.0]))
    assert status == 0 and "verdict: ok" in out
    assert "<|user|>1+1<|end|><|assistant|>⟦+<think>1</think>\\boxed{2}<|end|>⟧" in out
    assert "⟦-<think>" in out and "row 2" not in out  # three rows are checked, two are shown
    assert "advantage -0.500" in out and "3 of 3 rows" in out


def test_rows_of_every_kind_are_shown_first(monkeypatch, capsys):
    _, out = run(monkeypatch, capsys, rows_of([0.0, 0.0, 1.0, 1.0, -1.0]))
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("row")] == ["row 2", "row 4"]


def test_what_could_not_be_learned_exits_1(monkeypatch, capsys):
    rows = rows_of([1.0, -1.0])
    for row in rows:
        row.mask[-1] = False
    status, out = run(monkeypatch, capsys, rows)
    assert status == 1 and "FAULT: no row ends with a supervised end token" in out


@pytest.mark.parametrize("kind", ["rl", "ppo"])
def test_the_first_rollout_of_a_stage_that_samples(kind, tmp_path):
    """Of one mini-batch, with the advantages that the stage would train on and their global weights."""
    cfg = rl_config if kind == "rl" else ppo_config
    stage = SimpleNamespace(kind=kind, name="reasoning_rl", cfg=cfg)
    prepared = SimpleNamespace(stage=stage, inputs=digit_inputs(tmp_path))
    rows, reduction, tokenizer, end_ids = script.READERS[kind](prepared)
    assert len(rows) == cfg.prompts_per_step * cfg.G and reduction == cfg.algorithm.reduction
    pushed = [row.advantages[row.learns[-1]] for row in rows]
    assert min(pushed) < 0 < max(pushed)
    weights = script.token_weights_of(rows, reduction, cfg)
    assert sum(sum(of_row) for of_row in weights) == pytest.approx(1.0)  # both reductions are means
    assert not audit(rows, tokenizer, end_ids).faults


def test_brightness_follows_the_push():
    console = Console(force_terminal=True, color_system="truecolor", record=True, width=200)
    rows = rows_of([1.0, 0.2])
    with console.capture() as captured:
        weights = script.token_weights_of(rows, "token_mean", SimpleNamespace())
        script.show_rows(console, rows, weights, build_tokenizer(), 2)
    assert "38;2;60;220;90" in captured.get() and "⟦" not in captured.get()  # the strongest push at full brightness


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--stage", "cold_strat"], "cold_start"), (["--stage", "problems", "experiment=smoke"], "no token loss")],
)
def test_what_cannot_be_looked_at_exits_2(monkeypatch, capsys, tmp_path, arguments, says):
    monkeypatch.setattr(sys, "argv", ["audit.py", *arguments, f"output_dir={tmp_path}"])
    assert script.main() == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_real_stages(monkeypatch, capsys, tmp_path):
    """A supervised one and one that samples; what comes before them is made once."""
    for stage in ("cold_start", "reasoning_rl"):
        arguments = ["audit.py", "--stage", stage, "experiment=smoke", f"output_dir={tmp_path}"]
        monkeypatch.setattr(sys, "argv", arguments)
        assert script.main() == 0
        out = capsys.readouterr().out
        assert "verdict: ok" in out and "⟦+" in out and f"{stage}: 32 rows" in out
    assert "⟦-" in out and "advantage -" in out
