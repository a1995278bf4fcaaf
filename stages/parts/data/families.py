"""The embedded task families: two suites, a row each. Traces are short on purpose: their length is the demo's time.

`reasoning` is arithmetic in the wide sense; `general` has none (spelling, sorting, counting, filtering).
The dial: at difficulty 1 every family takes a few steps on one-digit numbers; each level adds terms, letters or larger
numbers.
"""

from __future__ import annotations

import ast
import operator
import re
from typing import Any

from stages.parts.data.open_families import HELPFUL, SAFETY
from stages.parts.data.tasks import Entry, Family
from stages.parts.data.translations import TRANSLATION

_OPERATORS = {ast.Add: ("+", operator.add), ast.Sub: ("-", operator.sub), ast.Mult: ("*", operator.mul)}


def _expression(entry: Entry) -> str:
    return entry["metadata"]["expression"].replace(" ", "")


def _whole(node: ast.expr) -> int:
    assert isinstance(node, ast.Constant) and isinstance(node.value, int)
    return node.value


def _evaluate(node: ast.expr, steps: list[str]) -> int:
    """The value of an expression, each operation noted as a step in the order a person does them."""
    if isinstance(node, ast.UnaryOp):
        return -_evaluate(node.operand, steps)
    if not isinstance(node, ast.BinOp):
        return _whole(node)
    symbol, function = _OPERATORS[type(node.op)]
    left, right = _evaluate(node.left, steps), _evaluate(node.right, steps)
    value = function(left, right)
    steps.append(f"{left}{symbol}{right}={value}")
    return value


def _expression_steps(entry: Entry) -> list[str]:
    steps: list[str] = []
    value = _evaluate(ast.parse(_expression(entry), mode="eval").body, steps)
    return steps or [str(value)]


def _largest(level: int) -> int:
    """The largest number that may occur, in between too: 9, 19, 29, ... At 9 every fact is one digit and one sign, so
    that all families practise the same hundred facts and half a million parameters can learn them in minutes."""
    return 10 * level - 1


def _terms(level: int, fewest: int) -> dict[str, Any]:
    """How many numbers, and of how many digits: of longer ones than the dial lets pass hardly an exercise is kept."""
    return {"min_terms": 3, "max_terms": fewest + level, "min_digits": 1, "max_digits": len(str(_largest(level)))}


def _within(*texts: str, level: int) -> bool:
    """No number of these texts is above the dial, none is negative."""
    numbers = [int(number) for text in texts for number in re.findall(r"-?\d+", text.replace("-", " -"))]
    return all(abs(number) <= _largest(level) for number in numbers) and not any("=-" in text for text in texts)


def _small_steps(entry: Entry, level: int) -> bool:
    return _within(*_expression_steps(entry), level=level)


def _small_brackets(entry: Entry, level: int) -> bool:
    """With brackets (else it would be a chain sum), one deep, and without negative literals."""
    expression = _expression(entry)
    signed = any(f"{sign}-" in f"({expression}" for sign in "(+-")
    return "(" in expression and "((" not in expression and not signed and _small_steps(entry, level)


def _small_equation(entry: Entry, level: int) -> bool:
    equation = _equation(entry)
    return "*" in equation and _within(equation, level=level) and _within(*_equation_steps(entry), level=level)


def _small_complex(entry: Entry, level: int) -> bool:
    real, imaginary = entry["metadata"]["result"]
    return 0 <= real <= _largest(level) and 1 <= imaginary <= _largest(level)


def _equation(entry: Entry) -> str:
    """With one name for the unknown, so that renaming it does not make a new problem."""
    return entry["metadata"]["equation"].replace(entry["metadata"]["variable"], "x").replace(" ", "")


def _equation_steps(entry: Entry) -> list[str]:
    """a*x+b=c, a*x-b=c, b-a*x=c or b+a*x=c: first the product, then the division."""
    left, right = _equation(entry).split("=")
    root = ast.parse(left, mode="eval").body
    assert isinstance(root, ast.BinOp)
    symbol = _OPERATORS[type(root.op)][0]
    goal = int(right)
    if isinstance(root.left, ast.Constant):
        known, term = _whole(root.left), root.right
        product = known - goal if symbol == "-" else goal - known
        minus = f"{known}-{goal}" if goal >= 0 else f"{known}+{-goal}"
        step = f"{minus}={product}" if symbol == "-" else f"{goal}-{known}={product}"
    else:
        known, term = _whole(root.right), root.left
        product = goal + known if symbol == "-" else goal - known
        step = f"{goal}+{known}={product}" if symbol == "-" else f"{goal}-{known}={product}"
    if isinstance(term, ast.BinOp):
        factor = _whole(term.left) if isinstance(term.left, ast.Constant) else 1
        return [step, f"{product}/{factor}={product // factor}"]
    return [step]


def _complex(entry: Entry) -> str:
    parts = [f"({real:.0f}{imag:+.0f}i)" for real, imag in (entry["metadata"]["num1"], entry["metadata"]["num2"])]
    return parts[0] + entry["metadata"]["operation"] + parts[1]


def _complex_steps(entry: Entry) -> list[str]:
    """Real parts, then imaginary parts."""
    metadata = entry["metadata"]
    triples = zip(metadata["num1"], metadata["num2"], metadata["result"], strict=True)
    return [f"{left:.0f}{metadata['operation']}{right:.0f}={value}" for left, right, value in triples]


def _numbers(values: list[Any]) -> str:
    return " ".join(str(int(float(value))) for value in values)


def _sorting_key(entry: Entry) -> str:
    direction = "up" if entry["metadata"]["direction"] == "ascending" else "down"
    return f"{direction}: {_numbers(entry['metadata']['original_numbers'])}"


def _sorting_steps(entry: Entry) -> list[str]:
    """Selection: pick the next number, write what is left."""
    left = [int(float(value)) for value in entry["metadata"]["original_numbers"]]
    steps = []
    for value in [int(float(value)) for value in entry["metadata"]["sorted_numbers"]]:
        left.remove(value)
        steps.append(f"{value} of {_numbers(left)}" if left else str(value))
    return steps


def _filter_key(entry: Entry) -> str:
    action, side = entry["metadata"]["operation"].split("_")
    sign = ">" if side == "larger" else "<"
    return f"{action} {sign}{entry['metadata']['filter_value']}: {_numbers(entry['metadata']['original_numbers'])}"


def _filter_steps(entry: Entry) -> list[str]:
    kept = list(entry["metadata"]["result"])
    steps = []
    for value in entry["metadata"]["original_numbers"]:
        stays = bool(kept) and kept[0] == value
        kept = kept[1:] if stays else kept
        steps.append(f"{_numbers([value])} {'yes' if stays else 'no'}")
    return steps


def _count_key(entry: Entry) -> str:
    return f"{entry['metadata']['target_letter']} in {' '.join(entry['metadata']['span']).lower()}"


def _count_steps(entry: Entry) -> list[str]:
    seen, marks = 0, []
    for letter in "".join(entry["metadata"]["span"]).lower():
        seen += letter == entry["metadata"]["target_letter"]
        marks.append(f"{letter}{seen}")
    return [" ".join(marks)]


def _spelling_steps(entry: Entry) -> list[str]:
    word = entry["metadata"]["word"]
    return [" ".join(word), " ".join(reversed(word))]


REASONING = {
    "chain_sum": Family(
        task="chain_sum",
        settings=lambda level: _terms(level, 4),
        keep=_small_steps,
        key=_expression,
        phrasings=("{}=?", "{} is?"),
        steps=_expression_steps,
    ),
    "basic_arithmetic": Family(
        task="basic_arithmetic",
        settings=lambda level: {
            **_terms(level, 3),
            "operators": ("+", "-"),
            "allow_negation": False,
            "whitespace": "no_space",
        },
        keep=_small_brackets,
        key=_expression,
        phrasings=("{}=?", "{} is?"),
        steps=_expression_steps,
    ),
    "simple_equations": Family(
        task="simple_equations",
        settings=lambda level: {
            "min_terms": 2,
            "max_terms": 2,
            "max_value": 5 + level,
            "operators_weights": [0.5, 0.5, 0.0],
        },
        keep=_small_equation,
        key=_equation,
        phrasings=("{}, x=?", "{}, find x"),
        steps=_equation_steps,
    ),
    "complex_arithmetic": Family(
        task="complex_arithmetic",
        settings=lambda level: {
            "min_real": 0,
            "max_real": _largest(level),
            "min_imag": 1,
            "max_imag": _largest(level),
            "operations": ("+", "-"),
            "operations_weights": [0.5, 0.5],
        },
        keep=_small_complex,
        key=_complex,
        phrasings=("{}=?", "{} is?"),
        steps=_complex_steps,
        answer=lambda entry: "{}{:+}i".format(*entry["metadata"]["result"]),
        verifier="exact",
    ),
}

GENERAL = {
    "spell_backward": Family(
        task="spell_backward",
        settings=lambda level: {"min_word_len": 3, "max_word_len": 4 + level},
        key=lambda entry: entry["metadata"]["word"],
        phrasings=("{} backward", "{} reversed"),
        steps=_spelling_steps,
        verifier="task",
    ),
    "letter_counting": Family(
        task="letter_counting",
        settings=lambda level: {"min_words": 1, "max_words": level},
        key=_count_key,
        phrasings=("{}?", "{}, count"),
        steps=_count_steps,
        verifier="task",
    ),
    "number_sorting": Family(
        task="number_sorting",
        settings=lambda level: {
            "min_numbers": 3,
            "max_numbers": 3 + level,
            "min_decimals": 0,
            "max_decimals": 0,
            "min_value": 0,
            "max_value": 9 * level,
        },
        key=_sorting_key,
        phrasings=("{}, sort", "{}, order"),
        steps=_sorting_steps,
        answer=lambda entry: _numbers(entry["metadata"]["sorted_numbers"]),
        verifier="exact",
    ),
    "number_filtering": Family(
        task="number_filtering",
        settings=lambda level: {
            "min_numbers": 3,
            "max_numbers": 3 + level,
            "min_decimals": 0,
            "max_decimals": 0,
            "min_value": 0,
            "max_value": 9 * level,
        },
        keep=lambda entry, level: len(entry["metadata"]["result"]) > 0,
        key=_filter_key,
        phrasings=("{}?", "{}, list"),
        steps=_filter_steps,
        answer=lambda entry: _numbers(entry["metadata"]["result"]),
        verifier="exact",
    ),
}

FAMILIES = {**REASONING, **GENERAL}  # with a boxed answer: what a base model reads about
EVERY_FAMILY = {**FAMILIES, **HELPFUL, **SAFETY, **TRANSLATION}
OF_SOURCE = {
    "reasoning_gym": REASONING,
    "general": GENERAL,
    "helpful": HELPFUL,
    "safety": SAFETY,
    "translation": TRANSLATION,
}
