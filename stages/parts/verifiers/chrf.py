"""`chrf`: how close an answer is to a reference text, by the letter n-grams that they share (Popović, WMT 2015).

chrF2 of one sentence as sacrebleu defines it: n-grams of 1 to 6 characters without blanks; precision and recall are
averaged over the orders that both texts have, recall weighs twice. Unlike the other verifiers it gives partial credit:
a reference-based reward, where 1 is the reference itself.
"""

from __future__ import annotations

from collections import Counter

from stages.parts.rollouts.types import Problem, Score

LARGEST_ORDER = 6
BETA = 2.0


def verify_chrf(problem: Problem, answer: str) -> Score:
    """Score in [0, 1]; None where there is no reference."""
    if not problem.answer.strip():
        return Score(None, reason="no reference")
    value = chrf(answer, problem.answer)
    return Score(value, reason="the reference" if value == 1.0 else f"chrF {value:.2f}")


def chrf(hypothesis: str, reference: str) -> float:
    """In [0, 1]; 0 where they share no order of n-grams at all."""
    pairs = [(_grams(hypothesis, order), _grams(reference, order)) for order in range(1, LARGEST_ORDER + 1)]
    shared = [((ours & theirs).total(), ours.total(), theirs.total()) for ours, theirs in pairs if ours and theirs]
    precision = sum(match / ours for match, ours, _ in shared) / max(len(shared), 1)
    recall = sum(match / theirs for match, _, theirs in shared) / max(len(shared), 1)
    if precision + recall == 0.0:
        return 0.0
    return (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)


def _grams(text: str, order: int) -> Counter[str]:
    letters = "".join(text.split())
    return Counter(letters[start : start + order] for start in range(len(letters) - order + 1))
