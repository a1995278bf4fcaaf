"""The page around the sections, and how text and numbers are written in it."""

from __future__ import annotations

import html
import re
from pathlib import Path

STYLE = Path(__file__).with_name("style.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
# Control characters, bidirectional overrides, lone surrogates: shown as escapes.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


def page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>\n{STYLE.read_text()}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, body: str, note: str = "") -> str:
    """A titled part of the page; nothing where there is nothing to say."""
    if not body:
        return ""
    told = f'<p class="note">{text(note)}</p>' if note else ""
    anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    return f'<section id="{anchor}">\n<h2>{text(title)}</h2>\n{told}{body}\n</section>\n'


def text(value: object) -> str:
    """Anything as text in HTML, in element or attribute: escaped, and with nothing in it that cannot be seen."""
    return html.escape(_UNSEEN.sub(_shown, str(value)), quote=True)


def _shown(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def block(value: object, limit: int = 4000) -> str:
    """A response or another text of any length, as it is, cut with a note beyond `limit` characters."""
    whole = str(value)
    cut = f'\n<span class="cut">… {len(whole) - limit:,} more characters</span>' if len(whole) > limit else ""
    return f"<pre>{text(whole[:limit])}{cut}</pre>"


def table(head: list[str], rows: list[list[str]], kind: str = "") -> str:
    """Cells are HTML. The first column names the row, the others are numbers; scrolls sideways where it must."""
    if not rows:
        return ""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "\n".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    whole = f'<table class="{kind}"><thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table>'
    return f'<div class="scroll">{whole}</div>'


def details(summary: str, body: str, is_open: bool = False) -> str:
    """A part that folds. `summary` and `body` are HTML."""
    if not body:
        return ""
    return f"<details{' open' if is_open else ''}><summary>{summary}</summary>\n{body}\n</details>"


def chip(status: str) -> str:
    return f'<span class="chip {text(status.split()[0])}">{text(status)}</span>'


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def number(value: float | None) -> str:
    """A metric of unknown size, to three or four figures."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 0.001:
        return f"{value:.4g}"
    return f"{value:.2e}"


def count(value: float) -> str:
    """12,345 as it is; 1.2M, 3.4B."""
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:,.0f}"


def percent(fraction: float, digits: int = 1) -> str:
    return f"{100 * fraction:.{digits}f}"


def signed(fraction: float) -> str:
    """A difference in points, with a real minus sign."""
    points = round(100 * fraction, 1)
    return f"{'−' if points < 0 else '+'}{abs(points):.1f}"
