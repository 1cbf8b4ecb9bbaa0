"""Something to repeat that nobody could guess: identifiers, digits and words in any order.

What is asked for stands a few tokens back, so that identifiers and short lists need the window and nothing else.
"""

from random import Random

from training.corpus.sample import Sample, dialogue
from training.corpus.words import ANIMALS, COLOURS, NAMES, PLACES, THINGS, distinct

SIGNS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
WORDS = (*NAMES, *PLACES, *COLOURS, *THINGS, *ANIMALS)
LONGEST = 12
"""Words of a list: with its question it fits into a window of 32."""


def sample(rng: Random, size: int) -> Sample:
    """Identifiers, or lists of words or digits, in as many turns as fit."""
    pairs, used = list[tuple[str, str]](), 0
    while not pairs or (used + 2 * LONGEST < size and len(pairs) < 8):
        text = rng.choice((_identifier, _words, _words, _digits))(rng)
        pairs.append((f"Repeat {text}", text))
        used += 2 * len(text.split()) + 8
    return dialogue("copying", "", pairs)


def _identifier(rng: Random) -> str:
    name = "".join(rng.choice(SIGNS) for _ in range(rng.randint(5, 9)))
    cut = rng.randint(2, len(name) - 2)
    return f"{name[:cut]}-{name[cut:]}"


def _words(rng: Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, LONGEST)))


def _digits(rng: Random) -> str:
    # Different ones: what follows a digit that stands there twice is told by places alone.
    return " ".join(distinct(rng, "0123456789", rng.randint(4, 9)))
