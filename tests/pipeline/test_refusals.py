"""Hydra's own faults, reworded: the key, what is wrong, the nearest name that exists; never a traceback."""

from __future__ import annotations

import pytest

from pipeline.compose import compose
from pipeline.messages import Refused, nearest, suggest

CASES = [
    ("pipeline=r1_styl", "pipeline: there is no pipeline 'r1_styl' -> write r1_style"),
    ("model=tinny", "model: there is no model 'tinny' -> write tiny"),
    ("experiment=[smok]", "experiment: there is no experiment 'smok' -> write smoke"),
    ("stages.resoning_rl.steps=3", "there is no stage 'resoning_rl' -> write stages.reasoning_rl.steps"),
    ("stages.reasoning_rl.stps=3", "there is no key 'stps' -> write stages.reasoning_rl.steps"),
    ("~stages.cold_strat", "stages.cold_strat: there is no stage 'cold_strat' -> write ~stages.cold_start"),
    ("engine@stages.bas.engine=zero1", "there is no stage 'bas' -> write engine@stages.base.engine=..."),
    ("algorithm@stages.reasoning_rl.algorithm=dap", "there is no algorithm 'dap' -> write dapo"),
    (
        "algorithm@stages.cold_start.algorithm=dapo",
        "has no algorithm to choose -> write algorithm@stages.NAME.algorithm",
    ),
    ("algoritm@stages.general_rl.algoritm=dapo", "-> write algorithm@stages.general_rl.algorithm=..."),
    ("engine@stages.base.engin=zero1", "is not where base has its engine -> write engine@stages.base.engine=..."),
    ("stage.base.steps=3", "stage.base.steps: there is no key 'stage' -> write stages.base.steps"),
    ("unheard_of=3", "unheard_of: there is no key 'unheard_of' -> write one of: G, "),
    ("G=many", "G: 'many' is not a whole number -> write a value of that type"),
    ("stages.base.learning_rate=fast", "stages.base.learning_rate: 'fast' is not a number"),
    ("dry_run=perhaps", "dry_run: 'perhaps' is not true or false"),
    (
        "evaluation.ks=1,2",
        "has several values: 1,2 -> add -m to sweep over them; a list is written evaluation.ks=[1,2]",
    ),
    ("experiment=dapo,smoke", "-> add -m to sweep over them; a list is written experiment=[dapo,smoke]"),
    ("G=[4", "G=[4: cannot be read -> write KEY=VALUE"),
    ("+stages.general_lr.steps=3", "there is no stage 'general_lr' -> write stages.general_rl.steps"),
    ("+G=4", "G: is there already -> leave the + out: G=..."),
    ("engine.zero_stage=2", "engine.zero_stage: is read by no stage"),
    ("algorithm.beta=0.1", "algorithm.beta: is read by no stage"),
    ("num_generations=8", "num_generations: 'num_generations' is unknown -> here it is called G: G=..."),
    ("stages.general_rl.kl_coef=0", "here it is called beta: stages.general_rl.algorithm.beta=..."),
    ("stages.general_rl.clip_range=0.2", "here it is called epsilon: stages.general_rl.algorithm.epsilon=..."),
    ("stages.general_rl.max_new_tokens=9", "here it is called max_response_tokens: stages.general_rl.max_response"),
    ("stages.reasoning_rl.step=3", "there is no key 'step' -> write stages.reasoning_rl.steps"),
    ("pipline=r1_style", "pipline: there is no key 'pipline' -> write pipeline"),
    ("expriment=smoke", "expriment: there is no key 'expriment' -> write experiment"),
    ("kl_coef=0.1", "kl_coef: 'kl_coef' is unknown -> here it is called beta: beta=..."),
    ("stages.reasoning_rl.algorithm.clip_range=0.1", "called epsilon: stages.reasoning_rl.algorithm.epsilon=..."),
    ("evaluation={samplez: 3}", "evaluation.samplez: there is no key 'samplez' -> write evaluation.samples"),
    ("stages={a: b}", "stages.a: there is no stage 'a' -> write one of: base, "),
    ("+foo=1", "foo: there is no key 'foo' -> write one of: G, "),
    ("++stages.reasoning_rl.algorithm.epsilonn=1", "'epsilonn' -> write stages.reasoning_rl.algorithm.epsilon"),
    ("+experiment=smoke", "experiment: is chosen already -> leave the + out: experiment=NAME"),
    ("~stage@stages.base", "~stage@stages.base: cannot be left out of a run -> write ~stages.base"),
    ("base.steps=3", "base.steps: 'base' is a stage -> write stages.base.steps"),
    ("stages.base.eval.gate.min=0.4", "the root's are for all of them -> write stages.base.gate.min"),
    ("base=3", "base: 'base' is a stage -> write stages.base.FIELD"),
    ("~base.steps", "base.steps: 'base' is a stage -> write ~stages.base.steps"),
    ("stages.base.eval.gated=1", "the root's are for all of them -> write evaluation.FIELD"),
    ("stages.base.eval.samples=4", "the root's are for all of them -> write evaluation.samples"),
    ("hydra/launcher=jobib", "there is no hydra/launcher 'jobib' -> write joblib (there are: basic, job"),
    ("+stage@stages.new=sft", "+stage@stages.new: adds a stage, which only a recipe can -> write it into conf/pipel"),
    ("~stages.basee", "stages.basee: there is no stage 'basee' -> write ~stages.base"),
    ("resume=true", "resume: there is no key 'resume' -> leave it out: the same command goes on from the last check"),
    ("+stages.base.resume_from=x", "'resume_from' -> leave it out: the same command goes on from the last checkpoint"),
    (
        "stages.base.model.layers=2",
        "stages.base.model is the run's model, for every stage that reads it -> write model.",
    ),
    (
        "++stages.student_base.model.facts.x=2",
        "is the run's student, for every stage that reads it -> write stud",
    ),
    ("stages.problems.reasoning.subset=x", "is the run's data, for every stage that reads it -> write data.subset=x"),
    (
        "stages.general_rl.suites={}",
        "stages.general_rl.suites: {} changes nothing: mappings are merged -> write ~stages.general_rl.suites.NAME for",
    ),
    ("++stages.base={ }", "stages.base: {} changes nothing: mappings are merged -> leave it out"),
    ("pipeline=[r1_style]", "pipeline: '[r1_style]' is no choice -> write one of: deepseekmath, "),
    ("model=../data/hub", "model: '../data/hub' is no choice -> write one of: hf, "),
    ("experiment={}", "experiment: '{}' is no choice -> write one of: dapo, "),
    ("~evaluation", "~evaluation: cannot be left out of a run -> give it another value, or leave this out"),
    ("~launcher", "~launcher: cannot be left out of a run -> write launcher=NAME for another"),
    ("~experiment=smoke", "~experiment=smoke: is not chosen -> leave it out"),
    (
        "~stages.base.steps",
        "~stages.base.steps: cannot be left out, as fields have to have a value -> write stages.base.",
    ),
    ("stage@stages.base=sft", "the recipe gives base a field that sft does not have: model -> choose a kind with the"),
    ("+suite=helpful", "+suite: is chosen by a recipe -> write it into conf/pipeline"),
    ("scale.base=foo", "scale.base: consists of fields -> write scale.base.FIELD=VALUE"),
    ("scale.base.steps=x", "scale.base.steps: 'x' is not a whole number -> write a value of that type"),
    ("scale.base.steps=null", "scale.base.steps: cannot be null -> give it a value, or leave it out"),
    (
        "scale.evaluation.ks=1",
        "scale.evaluation.ks: '1' is not a list as evaluation.ks needs it -> write scale.evaluat",
    ),
    ("scale.evaluation.ks=[a]", "'['a']' is not a list as evaluation.ks needs it -> write scale.evaluation.ks=[1, 8]"),
    ("until=[base]", "until: '[base]' is not one value -> write until=base"),
    ("evaluation.suites={a: 1}", "evaluation.suites: '{a: 1}' is not a list -> write evaluation.suites=[ITEM, ...]"),
    (
        "stages.reasoning_rl.suites=[reasoning]",
        "'[reasoning]' is not a mapping -> write stages.reasoning_rl.suites.NAME",
    ),
    ("=3", "=3: has no key -> write KEY=VALUE"),
    ("model=null", "model: 'null' is no choice -> write one of: hf, "),
    ("engine@stages.base.engine=2", "engine@stages.base.engine: '2' is no choice -> write one of: torch, "),
    ("evaluation.ks=1", "evaluation.ks: '1' is not a list -> write evaluation.ks=[1]"),
    ("stages.reasoning_rl.suites=5", "'5' is not a mapping -> write stages.reasoning_rl.suites.NAME=VALUE"),
    ("G=null", "G: cannot be null -> give it a value, or leave it out"),
    (
        "hydra/launcher=ray",
        "hydra/launcher: ray comes with a package that is not installed -> run pip install hydra-ray",
    ),
    ("general_data=jsonl", "general_data: 'jsonl' is to be a choice of data -> write data@general_data=jsonl"),
    ("learning_rate=1e-3", "learning_rate: is a field of a stage, not of the run -> write stages.NAME.learning_rate="),
    ("stages.reasoning_rl.algorithm=dapo", "-> write algorithm@stages.reasoning_rl.algorithm=dapo"),
    ("objective=reasoning_rl", "objective: 'reasoning_rl' is not what objective consists of -> write its fields"),
    ("max_new_tokens=9", "here it is called max_response_tokens: stages.NAME.max_response_tokens=..."),
]


@pytest.mark.parametrize(("override", "told"), CASES, ids=[override for override, _ in CASES])
def test_one_line_with_key_and_remedy(override: str, told: str) -> None:
    with pytest.raises(Refused) as caught:
        compose([override])
    (line,) = str(caught.value).splitlines()
    assert told in line
    assert len(line) < 400 and "HYDRA_FULL_ERROR" not in line


def test_several_values_of_what_is_no_list_are_a_sweep() -> None:
    for override in ("seed=1,2", "pipeline=r1_style,r1_zero"):
        with pytest.raises(Refused) as caught:
            compose([override])
        key, _, values = override.partition("=")
        assert str(caught.value) == f"{key}: has several values: {values} -> add -m to sweep over them"


def test_a_stage_whose_model_is_written_out_is_its_own() -> None:
    own = ["stages.base.model={source: scratch, hidden_size: 64}", "stages.reasoning_rl.algorithm.beta=0.5"]
    cfg = compose(own)
    assert (cfg.stages["base"].model.hidden_size, cfg.model.hidden_size) == (64, 128)


def test_suggestions_name_what_is_near_and_never_what_is_far() -> None:
    assert nearest("general_lr", ["general_rl", "base"]) == "general_rl"
    assert nearest("zzz", ["general_rl", "base"]) is None
    assert suggest("zzz", ["b", "a"]) == "write one of: a, b"
