"""The embedded task families: two suites, a row each. Traces are short on purpose: their length is the demo's time.

`reasoning` is arithmetic in the wide sense; `general` has none (spelling, sorting, counting, filtering).
The dial: every family solves at difficulty 1 with two or three steps, and each level adds terms or larger numbers.
"""

from __future__ import annotations

import ast
import operator
from typing import Any

from stages.parts.data.tasks import Entry, Family

_ANIMALS = {"snake", "chicken", "duck", "bird", "dog", "cat", "cow", "ant", "bee", "wasp", "spider", "crab"}
_OPERATORS = {ast.Add: ("+", operator.add), ast.Sub: ("-", operator.sub), ast.Mult: ("*", operator.mul)}


def _expression(entry: Entry) -> str:
    return entry["metadata"]["expression"].replace(" ", "")


def _has_product(entry: Entry) -> bool:
    """With a product (else it would be a chain sum), without negative literals and brackets around brackets."""
    expression = _expression(entry)
    return "*" in expression and "((" not in expression and not any(f"{sign}-" in f"({expression}" for sign in "(+-*")


def _evaluate(node: ast.expr, steps: list[str]) -> int:
    """The value of an expression, each operation noted as a step in the order a person does them."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return -_evaluate(node.operand, steps)
    symbol, function = _OPERATORS[type(node.op)]
    left, right = _evaluate(node.left, steps), _evaluate(node.right, steps)
    value = function(left, right)
    steps.append(f"{left}{symbol}{right}={value}")
    return value


def _expression_steps(entry: Entry) -> list[str]:
    steps: list[str] = []
    value = _evaluate(ast.parse(_expression(entry), mode="eval").body, steps)
    return steps or [str(value)]


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
        known, term = root.left.value, root.right
        product = known - goal if symbol == "-" else goal - known
        step = f"{known}-{goal}={product}" if symbol == "-" else f"{goal}-{known}={product}"
    else:
        assert isinstance(root.right, ast.Constant)
        known, term = root.right.value, root.left
        product = goal + known if symbol == "-" else goal - known
        step = f"{goal}+{known}={product}" if symbol == "-" else f"{goal}-{known}={product}"
    if isinstance(term, ast.BinOp):
        factor = term.left.value if isinstance(term.left, ast.Constant) else 1
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


def _animals(entry: Entry) -> str:
    return " ".join(f"{count} {animal}" for animal, count in entry["metadata"]["animals"].items())


def _leg_steps(entry: Entry) -> list[str]:
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    steps, total = [], None
    for animal, count in entry["metadata"]["animals"].items():
        legs = count * ANIMALS[animal]
        steps.append(f"{count}*{ANIMALS[animal]}={legs}")
        if total is not None:
            steps.append(f"{total}+{legs}={total + legs}")
        total = legs if total is None else total + legs
    return steps


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
        settings=lambda level: {"min_terms": 2, "max_terms": 3 + level, "min_digits": 1, "max_digits": 1 + level // 4},
        key=_expression,
        phrasings=("{}=?", "Compute {}", "What is {}?"),
        steps=_expression_steps,
    ),
    "basic_arithmetic": Family(
        task="basic_arithmetic",
        settings=lambda level: {
            "min_terms": 3,
            "max_terms": 2 + level,
            "min_digits": 1,
            "max_digits": 1,
            "operators": ("+", "-", "*"),
            "allow_negation": False,
            "whitespace": "no_space",
        },
        keep=_has_product,
        key=_expression,
        phrasings=("{}=?", "Evaluate {}"),
        steps=_expression_steps,
    ),
    "simple_equations": Family(
        task="simple_equations",
        settings=lambda level: {
            "min_terms": 2,
            "max_terms": 2,
            "max_value": 6 + level,
            "operators_weights": [0.5, 0.5, 0.0],
        },
        keep=lambda entry: "*" in entry["metadata"]["equation"],
        key=_equation,
        phrasings=("Solve {}", "{}, x=?"),
        steps=_equation_steps,
    ),
    "complex_arithmetic": Family(
        task="complex_arithmetic",
        settings=lambda level: {
            "min_real": 0,
            "max_real": 5 * level + 4,
            "min_imag": 1,
            "max_imag": 5 * level + 4,
            "operations": ("+", "-"),
            "operations_weights": [0.5, 0.5],
        },
        key=_complex,
        phrasings=("{}=?", "Compute {}"),
        steps=_complex_steps,
        answer=lambda entry: "{}{:+}i".format(*entry["metadata"]["result"]),
        verifier="exact",
    ),
    "leg_counting": Family(
        task="leg_counting",
        settings=lambda level: {"min_animals": 2, "max_animals": 1 + level, "min_instances": 1, "max_instances": 9},
        keep=lambda entry: set(entry["metadata"]["animals"]) <= _ANIMALS,
        key=_animals,
        phrasings=("Legs: {}?", "How many legs: {}?"),
        steps=_leg_steps,
        verifier="task",
    ),
}

GENERAL = {
    "spell_backward": Family(
        task="spell_backward",
        settings=lambda level: {"min_word_len": 3, "max_word_len": 4 + level},
        key=lambda entry: entry["metadata"]["word"],
        phrasings=("Spell {} backward", "Reverse {}"),
        steps=_spelling_steps,
        verifier="task",
    ),
    "letter_counting": Family(
        task="letter_counting",
        settings=lambda level: {"min_words": 1, "max_words": level},
        key=_count_key,
        phrasings=("Count {}", "How many {}?"),
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
        phrasings=("Sort {}", "Order {}"),
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
        keep=lambda entry: len(entry["metadata"]["result"]) > 0,
        key=_filter_key,
        phrasings=("Numbers, {}", "List, {}"),
        steps=_filter_steps,
        answer=lambda entry: _numbers(entry["metadata"]["result"]),
        verifier="exact",
    ),
}

SUITES = {"reasoning": REASONING, "general": GENERAL}
FAMILIES = {**REASONING, **GENERAL}
