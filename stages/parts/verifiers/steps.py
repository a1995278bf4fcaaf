"""The arithmetic steps of a response, checked exactly: "5+3=8, 8-2=6" is two steps.

DeepSeekMath's process supervision (arXiv:2402.03300, section 4.1.3) has a learned model judge every step. Arithmetic
needs none: a step is an equation between numbers, it holds or it does not, in exact fractions ("=" is not "about").
What differs from a plain check is what it takes to be *right*, because whatever is rewarded a step is farmed by writing
more of them. With `once`, every number of the question and every result may be used once: n numbers allow n - 1 steps,
and facts that have nothing to do with the question earn nothing. Word problems use numbers again ("half of the 48, and
48 more"), so it can be switched off. Signs are not told apart there: 5-(3-7) may go on as 5+4. Saying a right step
again is no new step.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_SAME_LENGTH = {"×": "*", "÷": "/", "−": "-", "·": "*", "\\times": "*     ", "\\cdot": "*    ", "\\div": "/   "}
_LEFT = re.compile(r"[\d.,()+*/ \t-]{1,80}$")
_RIGHT = re.compile(r"[ \t]*\\?\$?([\d.,()+*/ \t-]{1,80})")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_SEPARATOR = re.compile(r",(?!\d{3}(?!\d))")  # a comma that is not between thousands
_BOX = "\\boxed"


@dataclass(frozen=True)
class Step:
    """One equation; `end` is the place in the text after its last character."""

    end: int
    right: bool


def find_steps(text: str, question: str, once: bool = True) -> list[Step]:
    """The steps before the answer's box, in order. A step that was right before and is said again is left out.

    once: a step is right only if it uses numbers of the question or results of right steps, each of them once.
    """
    pool = Counter(abs(Fraction(number.replace(",", ""))) for number in _NUMBER.findall(question))
    said: set[tuple[str, Fraction]] = set()
    steps = []
    for left, right, end in _equations(text):
        value, given = _value(left), _value(right)
        if value is None or given is None or value != given:
            steps.append(Step(end, False))
            continue
        claim, operands = (ast.unparse(left), given), Counter(_numbers(left))
        founded = operands <= pool if once else claim not in said
        if founded:
            said.add(claim)
            pool = pool - operands
            pool[abs(given)] += 1
        if founded or claim not in said:
            steps.append(Step(end, founded))
    return steps


def _equations(text: str) -> list[tuple[ast.expr, ast.expr, int]]:
    """(left side, right side, end) of every equation between numbers with something to work out on its left."""
    for sign, ours in _SAME_LENGTH.items():
        text = text.replace(sign, ours)
    box = text.rfind(_BOX)
    text = text if box == -1 else text[:box]
    found = []
    for match in re.finditer("=", text):
        left = _left_side(text, match.start())
        right = _right_side(text, match.end())
        if left is not None and right is not None:
            found.append((left, *right))
    return found


def _left_side(text: str, stop: int) -> ast.expr | None:
    """The longest expression that ends at `stop`; None where there is none or it is a bare number."""
    run = _LEFT.search(text, max(0, stop - 80), stop)
    if run is None:
        return None
    words = _SEPARATOR.split(run.group())[-1]
    clipped = len(words) == len(run.group())  # whatever stands before the run touches it
    before = text[run.start() - 1] if clipped and run.start() else " "
    starts = [0, *(space.end() for space in re.finditer(r"[ \t]+", words))]
    for start in starts:
        touches = start == 0 and (before.isalnum() or before in "_\\.^%}")
        tree = None if touches else _parse(words[start:])
        if isinstance(tree, ast.BinOp):
            return tree
    return None


def _right_side(text: str, start: int) -> tuple[ast.expr, int] | None:
    """The longest expression that begins at `start`, and where it ends."""
    run = _RIGHT.match(text, start)
    if run is None:
        return None
    words = _SEPARATOR.split(run[1])[0].rstrip(" \t.")
    after = text[run.start(1) + len(words) :][:1]
    stops = [len(words), *reversed([space.start() for space in re.finditer(r"[ \t]+", words)])]
    for stop in stops:
        touches = stop == len(words) and (after.isalnum() or after in ("_", "^", "\\"))
        tree = None if touches else _parse(words[:stop])
        if tree is not None:
            return tree, run.start(1) + stop
    return None


def _parse(text: str) -> ast.expr | None:
    """An expression of numbers, the four operations and brackets; None for anything else."""
    text = text.strip().replace(",", "")
    if not text or text[0] in "+*/":
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        return None
    return tree if _is_arithmetic(tree) else None


def _is_arithmetic(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_arithmetic(node.operand)
    return (
        isinstance(node, ast.BinOp)
        and type(node.op) in _OPERATORS
        and _is_arithmetic(node.left)
        and _is_arithmetic(node.right)
    )


def _value(node: ast.expr) -> Fraction | None:
    """The exact value; None where something is divided by zero."""
    if isinstance(node, ast.Constant):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand)
        return None if inner is None else -inner
    assert isinstance(node, ast.BinOp)
    left, right = _value(node.left), _value(node.right)
    if left is None or right is None or (isinstance(node.op, ast.Div) and right == 0):
        return None
    return _OPERATORS[type(node.op)](left, right)


def _numbers(node: ast.expr) -> list[Fraction]:
    return [abs(Fraction(str(leaf.value))) for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)]
