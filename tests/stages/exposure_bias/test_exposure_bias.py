"""The distance after one's own words and after the teacher's: against both models read once more, and its limits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from pipeline.artifacts import StageFailed
from pipeline.tracking import Context
from stages.exposure_bias.config import ExposureBiasConfig, outline
from stages.exposure_bias.run import exposure_metrics, run
from stages.parts.data.problems import load_problems
from stages.parts.data.template import render_prompt
from stages.parts.losses.distillation import token_divergence
from stages.parts.policy.model import load_policy
from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.engine import transformers_engine
from stages.parts.rollouts.types import Request
from tests.stages.on_policy_distill.world import distill_inputs

CFG = ExposureBiasConfig(seed=0, max_problems=4, samples=2, max_response_tokens=6, dtype="float32")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    made = distill_inputs(tmp_path_factory.mktemp("exposure"))
    return {port: made[port] for port in ("student", "teacher", "problems")}


def measure(inputs, workdir, cfg=CFG):
    workdir.mkdir(parents=True, exist_ok=True)
    return run(cfg, inputs, Context(stage="exposure", workdir=workdir, seed=0))


def test_both_texts_are_read_by_both_models(inputs, tmp_path):
    """Sampled again with the same noise, and compared response by response, all logits at once."""
    metrics = measure(inputs, tmp_path)
    models = {name: load_policy(inputs[name].path, "float32") for name in ("student", "teacher")}
    problems = load_problems(inputs["problems"].path, "test", ["reasoning"])
    for writer, name in (("own", "student"), ("teacher", "teacher")):
        policy, found, nll = models[name], [], []
        requests = [
            Request(problem.id, index, render_prompt(policy.tokenizer, problem.messages))
            for problem in problems
            for index in range(2)
        ]
        key = (0, f"exposure_bias/{writer}", 0)
        for rollout in transformers_engine(policy).generate(requests, SamplingConfig(max_response_tokens=6), key):
            ids, start = torch.tensor([rollout.prompt_ids + rollout.response_ids]), len(rollout.prompt_ids)
            with torch.no_grad():
                q, p = (models[m].model(input_ids=ids).logits[0, start - 1 : -1] for m in ("student", "teacher"))
            found.append(token_divergence("forward_kl", p, q))
            nll.append(torch.nn.functional.cross_entropy(q, ids[0, start:], reduction="none"))
        assert metrics[f"exposure/{writer}_forward_kl"] == pytest.approx(float(torch.cat(found).mean()), rel=1e-4)
        assert metrics[f"exposure/{writer}_nll"] == pytest.approx(float(torch.cat(nll).mean()), rel=1e-4)
    rows = [json.loads(line) for line in (tmp_path / "measured" / "results.jsonl").read_text().splitlines()]
    assert exposure_metrics(rows) == metrics and metrics["exposure/problems"] == 4


def test_a_student_that_is_its_teacher_has_no_distance(inputs, tmp_path):
    metrics = measure(inputs | {"student": replace(inputs["teacher"], port="student")}, tmp_path)
    for name in ("own_forward_kl", "teacher_reverse_kl", "forward_kl_gap", "reverse_kl_gap"):
        assert metrics[f"exposure/{name}"] == pytest.approx(0.0, abs=1e-6)


def test_gaps_are_paired_over_problems():
    """own - teacher's: 0.5 - 0.1 and 0.3 - 0.1 nats a token."""
    numbers = {
        ("a", "own"): (10, 5.0),
        ("a", "teacher"): (20, 2.0),
        ("b", "own"): (10, 3.0),
        ("b", "teacher"): (10, 1.0),
    }
    rows = [
        {"problem_id": problem, "writer": writer, "tokens": tokens, "forward_kl": sum_, "reverse_kl": sum_, "nll": 0.0}
        for (problem, writer), (tokens, sum_) in numbers.items()
    ]
    metrics = exposure_metrics(rows)
    assert metrics["exposure/own_forward_kl"] == pytest.approx(0.4)
    assert metrics["exposure/teacher_forward_kl"] == pytest.approx(0.1)
    assert metrics["exposure/forward_kl_gap"] == pytest.approx(0.3)
    assert metrics["exposure/forward_kl_gap_low"] == pytest.approx(0.2)


def test_what_cannot_be_right_is_refused(inputs, tmp_path):
    bad = replace(CFG, split="train", temperature=0.0, samples=0, dtype="int8")
    assert {fault.key for fault in bad.faults()} == {"split", "temperature", "samples", "dtype"}
    known = {"suites": {"reasoning": {"test": 9}}}
    model = {"tokenizer_hash": "a"}
    good = outline(CFG, {"student": model, "teacher": model, "problems": known})
    assert good.faults == [] and good.tokens == 2 * 4 * 2 * 6
    other = {"student": model, "teacher": {"tokenizer_hash": "b"}, "problems": known}
    assert [fault.key for fault in outline(CFG, other).faults] == ["inputs.teacher"]
    wrong = outline(replace(CFG, suites=["general"]), {"student": model, "teacher": model, "problems": known})
    assert [fault.key for fault in wrong.faults] == ["suites"]
    with pytest.raises(StageFailed, match="general"):
        measure(inputs, tmp_path, replace(CFG, suites=["general"]))
