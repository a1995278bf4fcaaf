"""A response's reward: a weighted sum of the parts that its problem names, each also kept raw.

accuracy: the problem's verifier accepts the extracted answer. format: one closed think block, then an answer with a
box. language: share of the reasoning's words in the prompt's language. These three are rules, and what a problem that
names nothing is scored by. helpfulness, harmlessness: a reward model's, computed elsewhere (`learned`) and only weighed
here.
"""

from __future__ import annotations

from stages.parts.data.modes import wants_thinking
from stages.parts.data.template import THINK_CLOSE, THINK_OPEN, split_thinking
from stages.parts.rollouts.types import Problem, Score
from stages.parts.verifiers.answers import extract_answer, last_box
from stages.parts.verifiers.config import RULE_PARTS, RewardConfig
from stages.parts.verifiers.language import detect_language, language_share
from stages.parts.verifiers.table import VERIFIERS, WHOLE_ANSWER


def score_response(
    problem: Problem, text: str, truncated: bool, cfg: RewardConfig, learned: dict[str, float] | None = None
) -> Score:
    """The weighted reward of one response; `parts` are raw. value None: the gold cannot be judged.

    `learned`: what a reward model gave. A named part that nobody scored is left out: stages see to it before they
    train (preference_faults), and an evaluation has no reward model.
    """
    boxed = cfg.require_box and problem.verifier not in WHOLE_ANSWER
    parts = {
        "format": format_part(text, truncated, boxed, wants_thinking(problem.messages)),
        "language": language_part(problem, text),
    }
    named = parts_of(problem)
    verdict = judge(problem, text, truncated, cfg.require_box)
    if verdict.value is not None:
        parts = {"accuracy": verdict.value, **parts}
    elif "accuracy" in named:
        return Score(None, parts, verdict.reason)
    parts |= learned or {}
    earned = dict(parts)
    if verdict.value is not None and not verdict.value > 0:
        earned["accuracy"] = cfg.wrong
    value = sum(cfg.weight(part) * earned[part] for part in named if part in earned)
    return Score(value, parts, verdict.reason)


def parts_of(problem: Problem) -> tuple[str, ...]:
    """The parts of the reward that score a problem."""
    return tuple(problem.metadata.get("scored_by", RULE_PARTS))


def score_all(
    problems: list[Problem],
    texts: list[str],
    truncated: list[bool],
    cfg: RewardConfig,
    learned: list[dict[str, float]] | None = None,
) -> list[Score]:
    """Scores in the order of the responses: one each, whatever any of them contains."""
    rows = zip(problems, texts, truncated, learned or [{}] * len(texts), strict=True)
    return [score_response(problem, text, cut, cfg, more) for problem, text, cut, more in rows]


def judge(problem: Problem, text: str, truncated: bool = False, require_box: bool = True) -> Score:
    """Accuracy alone: 1 or 0, or None where the gold cannot be judged."""
    if problem.verifier in WHOLE_ANSWER:
        answer = split_thinking(text)[1]
        if truncated or not answer:
            return Score(0.0, reason="cut off" if truncated else "no answer after thinking")
        return VERIFIERS[problem.verifier](problem, answer)
    extracted = extract_answer(text, require_box, truncated)
    verdict = VERIFIERS[problem.verifier](problem, extracted.answer or "")
    if extracted.answer is None and verdict.value is not None:
        return Score(0.0, reason=extracted.reason)
    return verdict


def format_part(text: str, truncated: bool, require_box: bool = True, thinking: bool = True) -> float:
    """1 where the response is one closed think block and then an answer (with a box), and it ended. The block has
    reasoning in it, or where the prompt asks for no thinking none."""
    if truncated or text.count(THINK_CLOSE) != 1 or text.count(THINK_OPEN) > 1:
        return 0.0
    if THINK_OPEN in text and not text.lstrip().startswith(THINK_OPEN):
        return 0.0
    reasoning, answer = split_thinking(text)
    answered = last_box(answer)[0] is not None if require_box else bool(answer)
    return float(bool(reasoning) == thinking and answered)


def language_part(problem: Problem, text: str) -> float:
    """Share of words in the prompt's language: of the reasoning, or of the whole response where it has none."""
    reasoning, _ = split_thinking(text)
    prompt = " ".join(message["content"] for message in problem.messages)
    return language_share(text if reasoning is None else reasoning, detect_language(prompt))
