"""A base model from nothing and from a folder: facts as planned, resumed bit for bit, held-out problems kept out."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.artifacts import Artifact, Interrupted, StageFailed
from pipeline.tracking import Context
from stages.base_model.config import BaseModelConfig, ModelConfig, outline
from stages.base_model.corpus import make_corpus
from stages.base_model.run import held_out_identities, run
from stages.base_model.scratch import new_policy
from stages.parts.data.config import DataConfig
from stages.parts.data.problems import save_problems
from stages.parts.data.sources import build_suite
from stages.parts.data.splits import normalise
from stages.parts.data.tokenizer import NAME

TINY = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 16}


def config(**fields) -> BaseModelConfig:
    model = ModelConfig(source="scratch", **TINY)
    base = {
        "model": model,
        "steps": 4,
        "documents_per_step": 6,
        "learning_rate": 1e-2,
        "seed": 3,
        "save_every_steps": 2,
    }
    return BaseModelConfig(**{**base, **fields})


def context_in(folder) -> Context:
    folder.mkdir(parents=True, exist_ok=True)
    return Context(stage="base", workdir=folder, seed=3)


@pytest.fixture
def problems(tmp_path):
    data = DataConfig(source="reasoning_gym", train_problems=20, dev_problems=20, test_problems=60, demonstrations=0)
    suite = build_suite("reasoning", data)
    save_problems(tmp_path / "problems", suite.splits)
    families = {"reasoning": ["chain_sum", "complex_arithmetic"]}
    facts = {"families": families, "difficulty": {"reasoning": 1}, "split_seed": 0}
    return Artifact("problems", "dataset:problems", tmp_path / "problems", facts, "f", "d")


def test_scratch_is_as_planned_and_loads_anywhere(tmp_path, problems):
    cfg, context = config(), context_in(tmp_path / "a")
    metrics = run(cfg, {"problems": problems}, context)
    assert metrics["train/steps"] == 4 and metrics["train/total_tokens"] > 0
    plan = outline(cfg, {"problems": problems.facts})
    # The name of the tokenizer is the plan's alone: a folder shows its hash.
    assert context.facts["model"] | {"tokenizer": NAME} == plan.outputs["model"]
    folder = tmp_path / "a" / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.num_parameters() == plan.parameters
    assert model.generation_config.eos_token_id == plan.outputs["model"]["end_tokens"]
    prompt = [{"role": "user", "content": "3+4=?"}]
    encoded = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert model.generate(**encoded, max_new_tokens=3).shape[1] <= encoded["input_ids"].shape[1] + 3


def test_resumed_at_every_checkpoint_is_bit_identical(tmp_path, problems):
    whole = run(config(), {"problems": problems}, context_in(tmp_path / "whole"))
    for _ in range(3):  # a step, a checkpoint and a stop each
        context = context_in(tmp_path / "parts")
        context.stop.set()
        with pytest.raises(Interrupted):
            run(config(), {"problems": problems}, context)
    assert run(config(), {"problems": problems}, context_in(tmp_path / "parts")) == whole
    file = "model/model.safetensors"
    assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()
    assert records(tmp_path / "parts") == records(tmp_path / "whole")


def records(folder) -> list[dict]:
    """Metric lines without clock values."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def test_corpus_is_a_function_of_seed_and_step():
    corpus = make_corpus(config(), {}, set())
    assert corpus.documents(1) == make_corpus(config(), {}, set()).documents(1)
    assert corpus.documents(1) != corpus.documents(2)
    assert corpus.documents(1) != make_corpus(config(seed=4), {}, set()).documents(1)


def test_corpus_mixes_the_ways_of_answering():
    cfg = config(documents_per_step=600, reasoned_fraction=0.3, reflection_fraction=0.2, worked_phase=0.5)
    worked = [document[1]["content"] for document in make_corpus(cfg, {}, set()).documents(1)]
    assert sum(answer.startswith("\\boxed") for answer in worked) / 600 < 0.1
    answers = [document[1]["content"] for document in make_corpus(cfg, {}, set()).documents(2)]
    reasoned = [answer for answer in answers if not answer.startswith("\\boxed")]
    assert 0.22 < len(reasoned) / 600 < 0.38
    assert any("wait" in answer or "check" in answer for answer in reasoned)
    assert any("pues" in answer for answer in reasoned)
    assert 0 < sum("<think>" in answer for answer in reasoned) < len(reasoned)
    assert all("\\boxed{" in answer for answer in answers)


def test_held_out_problems_stay_out(problems):
    held_out = held_out_identities(problems.path)
    cfg = config(documents_per_step=400, families=[])
    questions = {normalise(d[0]["content"]) for d in make_corpus(cfg, problems.facts, held_out).documents(0)}
    assert len(held_out) >= 80 and not questions & held_out
    # another split seed lets them through the split, and they are still left out
    other = make_corpus(cfg, {**problems.facts, "split_seed": 1}, held_out)
    assert not {normalise(d[0]["content"]) for step in range(3) for d in other.documents(step)} & held_out
    unfiltered = make_corpus(cfg, {**problems.facts, "split_seed": 1}, set())
    assert {normalise(d[0]["content"]) for step in range(3) for d in unfiltered.documents(step)} & held_out


def test_weights_are_a_function_of_the_seed():
    def first(seed):
        return next(new_policy(ModelConfig(source="scratch", **TINY), seed).model.parameters())

    before = torch.random.get_rng_state()
    assert torch.equal(first(1), first(1)) and not torch.equal(first(1), first(2))
    assert torch.equal(torch.random.get_rng_state(), before)


def pretrained_folder(folder, template: str | None):
    policy = new_policy(ModelConfig(source="scratch", **TINY), 0)
    policy.model.generation_config.eos_token_id = 257  # as a base model: its text ends, its turns do not
    policy.model.save_pretrained(folder)
    policy.tokenizer.chat_template = template
    policy.tokenizer.save_pretrained(folder)
    return policy


def test_pretrained_keeps_weights_and_learns_its_end_token(tmp_path):
    template = "{%- for m in messages -%}{{- '<|' + m.role + '|>' + m.content + '<|end|>' -}}{%- endfor -%}"
    template += "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
    policy = pretrained_folder(tmp_path / "theirs", template)
    cfg = config(model=ModelConfig(source="pretrained", name_or_path=str(tmp_path / "theirs")))
    assert not cfg.faults()
    plan = outline(cfg, {})
    assert plan.steps == 0 and plan.parameters == policy.model.num_parameters() and "steps" in plan.inert
    context = context_in(tmp_path / "run")
    run(cfg, {}, context)
    assert context.facts["model"]["end_tokens"] == [257, 258]
    assert context.facts["model"]["template_hash"] == plan.outputs["model"]["template_hash"]
    taken = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(taken.state_dict()[name], tensor)


def test_faults(tmp_path):
    def keys(**model):
        return [fault.key for fault in config(model=ModelConfig(**model)).faults()]

    pretrained_folder(tmp_path / "bare", None)
    (tmp_path / "empty").mkdir()
    assert keys(source="pretrained") == ["model.name_or_path"]
    assert keys(source="pretrained", name_or_path="./no/such") == ["model.name_or_path"]
    assert keys(source="pretrained", name_or_path=str(tmp_path / "empty")) == ["model.name_or_path"]
    assert keys(source="pretrained", name_or_path=str(tmp_path / "bare")) == ["model.name_or_path"]
    assert keys(source="pretrained", name_or_path="no-folder") == ["model.name_or_path"]
    assert keys(source="pretrained", name_or_path="org/name") == []  # the plan finds out which commit that is
    assert keys(source="scratch", **{**TINY, "heads": 3, "kv_heads": 2}) == ["model.kv_heads"]
    assert keys(source="elsewhere") == ["model.source"]
    assert [fault.key for fault in config(families=["sudoku"]).faults()] == ["families"]


def test_declared_facts_are_checked(tmp_path):
    pretrained_folder(tmp_path / "theirs", "{{- messages[0].content -}}{%- if true -%}{%- endif -%}")
    model = ModelConfig(source="pretrained", name_or_path=str(tmp_path / "theirs"), facts={"parameters": 7})
    with pytest.raises(StageFailed):
        run(config(model=model), {}, context_in(tmp_path / "run"))


def test_models_of_one_family_may_declare_its_tokenizer():
    """Under many names one tokenizer: student and teacher are compared by what the YAMLs say of it."""

    def tokenizer(name: str, **facts) -> str:
        model = ModelConfig(source="pretrained", name_or_path=name, revision="abc", facts=facts)
        return outline(config(model=model), {}).outputs["model"]["tokenizer"]

    assert tokenizer("org/small") != tokenizer("org/large")
    assert tokenizer("org/small", tokenizer="org/family") == tokenizer("org/large", tokenizer="org/family")
