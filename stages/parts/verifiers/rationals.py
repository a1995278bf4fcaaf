"""Exact values of the ways to write a rational number. The fast path of the math verifier, and its exact one:

1/3 is not 0.333, 50 is not 50%, 1.2e6 and 1.2 x 10^6 and 1,200,000 are one number, and so are 7/2 and 3 1/2.
"""

from __future__ import annotations

import re
from fractions import Fraction

_DIGITS = r"\d+(?:\.\d+)?|\.\d+"
_PLAIN = re.compile(rf"([+-]?)({_DIGITS})(?:e([+-]?\d+))?")
_RATIO = re.compile(rf"([+-]?)({_DIGITS})/(-?(?:{_DIGITS}))")
_LATEX_RATIO = re.compile(r"([+-]?)(\d+)?\\frac{(-?\d+)}{(-?\d+)}")
_MIXED = re.compile(r"([+-]?)(\d+) (\d+)/(\d+)")
_SCIENTIFIC = re.compile(rf"([+-]?(?:{_DIGITS}))\\times10\^{{?([+-]?\d+)}}?")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")
_UNIT = re.compile(r"(?:\\,|\\ |~|\s)*\\(?:text|mathrm|textrm|mbox)\s*{[^{}]*}(?:\^{?\d}?)?$")
_DEGREES = re.compile(r"\^{?\\circ}?$")
_UNKNOWN = re.compile(r"^[A-Za-z]\s*=\s*")
_BARE_FRACTION = re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)")
_LONGEST = 60  # characters; longer ones are no plain numbers
_LARGEST_EXPONENT = 400


def rational(text: str) -> Fraction | None:
    """The value of a plainly written number, with unit, currency sign, degrees or `x=` around it; None: not one."""
    if len(text) > _LONGEST:
        return None
    text = tidy(text)
    percent = text.endswith(("%", "\\%"))
    if percent:
        text = text.removesuffix("%").removesuffix("\\").rstrip()
    value = _value(text)
    return value / 100 if percent and value is not None else value


def tidy(text: str) -> str:
    """`text` without what does not change its value: math signs, spacing, units, currency, degrees, `x=`."""
    text = text.strip().strip("$").strip().rstrip(".")
    text = text.removeprefix("\\(").removesuffix("\\)").strip()
    text = text.replace("\\!", "").replace("\\left", "").replace("\\right", "").replace("−", "-")
    text = _UNKNOWN.sub("", text)
    text = _UNIT.sub("", text)
    text = _DEGREES.sub("", text).removesuffix("°").strip()
    text = text.removeprefix("\\$").removeprefix("$").removeprefix("-\\$").strip() if "$" in text else text
    text = _BARE_FRACTION.sub(r"\\frac{\1}{\2}", text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    return _THOUSANDS.sub("", text)


def _value(text: str) -> Fraction | None:
    if (match := _MIXED.fullmatch(text)) and int(match[4]):
        return _signed(match[1], Fraction(int(match[2])) + Fraction(int(match[3]), int(match[4])))
    text = text.replace(" ", "").lower()
    if match := _PLAIN.fullmatch(text):
        value = _power(Fraction(match[2]), match[3] or "0")
        return None if value is None else _signed(match[1], value)
    if match := _RATIO.fullmatch(text):
        bottom = Fraction(match[3])
        return _signed(match[1], Fraction(match[2]) / bottom) if bottom else None
    if (match := _LATEX_RATIO.fullmatch(text)) and int(match[4]):
        return _signed(match[1], Fraction(int(match[2] or 0)) + Fraction(int(match[3]), int(match[4])))
    if match := _SCIENTIFIC.fullmatch(text):
        return _power(Fraction(match[1]), match[2])
    return None


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _power(value: Fraction, exponent: str) -> Fraction | None:
    if abs(int(exponent)) > _LARGEST_EXPONENT:
        return None
    return value * Fraction(10) ** int(exponent)
