"""Language consistency (DeepSeek-R1, arXiv:2501.12948): the share of the reasoning's words in the target language.

A word belongs to a language by its script; among languages in Latin letters, by the small words that give one away.
A Latin word that no list knows counts for whatever language is asked for: names and terms are no mixing.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"[^\W\d_]+")
_LATEX = re.compile(r"\\[A-Za-z]+")
_SCRIPT_LANGUAGE = {
    "CJK": "zh", "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "CYRILLIC": "ru", "ARABIC": "ar", "GREEK": "el",
    "HEBREW": "he", "THAI": "th", "DEVANAGARI": "hi",
}  # fmt: skip
_MARKS = {
    "en": "the of and is are to in what how many much find let so then we it that this with have wait check work if "
    "for from by on be was were has had will would can each total sum count compute solve sort spell but because not",
    "es": "el la los las de del y es son que en cuanto cuantos cuantas cuenta entonces espera reviso por para con una "
    "uno un se su como pero porque suma total tiene hay cada si lo luego primero pues",
    "fr": "le la les des du et est sont que en combien alors donc pour avec une un se son sa comme mais parce dans "
    "chaque nous il elle ce cette calcul attends",
    "de": "der die das und ist sind zu wie viele also dann mit ein eine einen für von nicht wir es auf wenn aber weil "
    "jede rechnung moment",
    "pt": "o os as de do da e são que em quantos quantas então para com uma um se seu como mas porque cada nós",
    "it": "il lo gli di del e è sono che in quanti quante allora per con una un si suo come ma perché ogni",
}  # fmt: skip
_WORDS = {language: frozenset(words.split()) for language, words in _MARKS.items()}


def language_share(text: str, target: str) -> float:
    """Words of `text` in language `target` over all its words, in [0, 1]; 1 where there are no words."""
    words = _words(text)
    if not words:
        return 1.0
    return sum(_belongs(word, target) for word in words) / len(words)


@lru_cache(maxsize=8192)
def detect_language(text: str) -> str:
    """The language most words of `text` point to; English where nothing does."""
    votes: dict[str, int] = {"en": 0}
    for word in _words(text):
        for language in _languages(word):
            votes[language] = votes.get(language, 0) + 1
    return max(votes, key=lambda language: (votes[language], language == "en"))


def _words(text: str) -> list[str]:
    """Single Latin letters are names of things (x, or a letter that is spelled), not words."""
    found = (word.casefold() for word in _WORD.findall(_LATEX.sub(" ", text)))
    return [word for word in found if len(word) > 1 or not word.isascii()]


def _belongs(word: str, target: str) -> bool:
    languages = _languages(word)
    if not languages:
        return target in _WORDS  # an unlisted word in Latin letters
    return target in languages or (target == "ja" and languages == ("zh",))


@lru_cache(maxsize=65536)
def _languages(word: str) -> tuple[str, ...]:
    if word.isascii() or "LATIN" in unicodedata.name(word[0], ""):
        return tuple(language for language, words in _WORDS.items() if word in words)
    script = unicodedata.name(word[0], "").split(" ")[0]
    return (_SCRIPT_LANGUAGE.get(script, script.lower()),)
