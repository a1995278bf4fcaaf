"""A response's reward: a weighted sum of rule-based parts, each also kept raw.

accuracy: the problem's verifier accepts the extracted answer. format: one closed think block, then an answer with a
box. language: share of the reasoning's words in the prompt's language. No learned model is involved.
"""

from __future__ import annotations

from stages.parts.data.modes import wants_thinking
from stages.parts.data.template import THINK_CLOSE, THINK_OPEN, split_thinking
from stages.parts.rollouts.types import Problem, Score
from stages.parts.verifiers.answers import extract_answer, last_box
from stages.parts.verifiers.config import RewardConfig
from stages.parts.verifiers.language import detect_language, language_share
from stages.parts.verifiers.table import VERIFIERS


def score_response(problem: Problem, text: str, truncated: bool, cfg: RewardConfig) -> Score:
    """The weighted reward of one response; `parts` are raw. value None: the gold cannot be judged."""
    parts = {
        "format": format_part(text, truncated, cfg.require_box, wants_thinking(problem.messages)),
        "language": language_part(problem, text),
    }
    verdict = judge(problem, text, truncated, cfg.require_box)
    if verdict.value is None:
        return Score(None, parts, verdict.reason)
    parts = {"accuracy": verdict.value, **parts}
    accuracy = verdict.value if verdict.value > 0 else cfg.wrong
    value = cfg.accuracy * accuracy + cfg.format * parts["format"] + cfg.language * parts["language"]
    return Score(value, parts, verdict.reason)


def score_all(problems: list[Problem], texts: list[str], truncated: list[bool], cfg: RewardConfig) -> list[Score]:
    """Scores in the order of the responses: one each, whatever any of them contains."""
    rows = zip(problems, texts, truncated, strict=True)
    return [score_response(problem, text, cut, cfg) for problem, text, cut in rows]


def judge(problem: Problem, text: str, truncated: bool = False, require_box: bool = True) -> Score:
    """Accuracy alone: 1 or 0, or None where the gold cannot be judged."""
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
