"""A fixed table from arbitrary phrases to arbitrary pairs of words: nothing to infer, only to have seen.

Three made-up words that follow each other are an n-gram, and the Engram tables have a row for it; the experts have no
room for as many pairs.  The table is part of the language, not of a split: held-out conversations ask it in other
orders and company.
"""

import functools
from random import Random

from training.corpus.sample import Sample, dialogue

NUM_PHRASES = 1000
SEED = 411
ONSETS, VOWELS, CODAS = "bdfgklmnprstvz", "aeiou", "lmnprstx"


@functools.cache
def table() -> tuple[tuple[str, str], ...]:
    """(phrase, code) of the whole table; phrases are distinct."""
    rng = Random(SEED)
    words = [onset + vowel + coda for onset in ONSETS for vowel in VOWELS for coda in CODAS]
    lexicon = rng.sample(words, 160)
    phrases: dict[str, str] = {}
    while len(phrases) < NUM_PHRASES:
        phrase = " ".join(rng.choice(lexicon) for _ in range(3))
        phrases.setdefault(phrase, f"{rng.choice(lexicon)} {rng.choice(lexicon)}")
    return tuple(phrases.items())


def sample(rng: Random, size: int) -> Sample:
    """Questions for codes, one after another."""
    asked = rng.sample(table(), max(1, min(12, size // 14)))
    pairs = [(f"Code {phrase}?", f"{code}.") for phrase, code in asked]
    return dialogue("recall", "", pairs, needs_tables=True)
