"""The language of a text, and its quality: two simple heuristics, 10 us per kilobyte.

The language is the one whose frequent words occur most; a text with hardly any of them is classified by its script, or
is ``und``. The quality is the product of four shares, each at most 1: number of words, letters among the characters,
lines that are not repeated, and words of readable length.
"""

import re
from collections import Counter
from typing import Final

ENOUGH_WORDS: Final = 24  # a shorter text is worth less
ENOUGH_LETTERS: Final = 0.6  # of the characters that are no white space; prose has 0.9, code 0.7
LONGEST_WORD: Final = 32  # characters; longer ones are encoded data
SEEN: Final = 20_000  # characters that are read
FEWEST: Final = 0.02  # share of a language's frequent words below which its script decides
WORD: Final = re.compile(r"\w+")
LETTER: Final = re.compile(r"[^\W\d_]")

FREQUENT: Final = {
    "en": {*"the of to and in is a for that it be as with this or on by not are if from an return".split()},  # noqa: SIM905  reads as a text
    "de": {*"der die das und ist nicht ein eine zu den mit von auf werden sich im dem oder".split()},  # noqa: SIM905
    "fr": {*"le la les et est une des du que pour dans qui sur pas par au ce avec sont".split()},  # noqa: SIM905
    "es": {*"el los las y es una del que para en por con no se su al como este".split()},  # noqa: SIM905
}
SCRIPTS: Final = (
    ("ja", re.compile(r"[\u3040-\u30ff]")),
    ("zh", re.compile(r"[\u4e00-\u9fff]")),
    ("ko", re.compile(r"[\uac00-\ud7af]")),
    ("ru", re.compile(r"[\u0400-\u04ff]")),
)
SCRIPT_SHARE: Final = 0.2  # of the letters


def language(text: str) -> str:
    """Return an ISO 639-1 code, or ``und`` if the language is unknown."""
    seen = text[:SEEN]
    letters = len(LETTER.findall(seen))
    for code, script in SCRIPTS:
        if len(script.findall(seen)) > SCRIPT_SHARE * max(1, letters):
            return code
    words = Counter(WORD.findall(seen.lower()))
    counts = {code: sum(words[word] for word in frequent) for code, frequent in FREQUENT.items()}
    best = max(counts, key=lambda code: counts[code])
    return best if counts[best] > FEWEST * max(1, words.total()) else "und"


def quality(text: str) -> float:
    """Return a score from 0 (nothing to learn from) to 1."""
    seen = text[:SEEN]
    words, dense = WORD.findall(seen), "".join(seen.split())
    if not words:
        return 0.0
    lines = [line for line in map(str.strip, seen.splitlines()) if line]
    shares = (
        len(words) / ENOUGH_WORDS,
        len(LETTER.findall(dense)) / len(dense) / ENOUGH_LETTERS,
        len(set(lines)) / len(lines) * 1.2,  # a sixth may repeat: brackets, rules
        sum(len(word) for word in words if len(word) <= LONGEST_WORD) / sum(map(len, words)),
    )
    score = 1.0
    for share in shares:
        score *= min(1.0, share)
    return round(score, 4)
