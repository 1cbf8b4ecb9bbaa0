"""Facts farther back than the window: who keeps which thing where, and questions about it.

Needs compressed rows and the selection of the right ones.  What is looked up stands behind what it is known by, and an
answer says first what was asked.  Who keeps a thing is not asked, for the name stands before it: at 21 million tokens
one such answer in four was right, where all of the others were.
"""

from random import Random

from training.corpus.sample import Sample, dialogue
from training.corpus.words import COLOURS, FILLERS, NAMES, PLACES, THINGS, count_words, distinct


def sample(rng: Random, size: int) -> Sample:
    """As many facts as fit, with fillers between them, and up to six questions."""
    names = distinct(rng, NAMES, len(NAMES))
    things = distinct(rng, [f"{colour} {thing}" for colour in COLOURS for thing in THINGS], len(names))
    sentences: list[str] = []
    known = []
    for name, thing in zip(names, things, strict=True):
        place = rng.choice(PLACES)
        known.append((name, thing, place))
        sentences.append(f"{name} keeps a {thing} in the {place}.")
        while rng.random() < 0.3:
            sentences.append(rng.choice(FILLERS))
        if count_words(sentences) >= size:
            break
    while count_words(sentences) < size - 8:
        sentences.insert(rng.randrange(len(sentences)), rng.choice(FILLERS))
    asked = rng.sample(known, min(6, len(known)))
    return dialogue("facts", " ".join(sentences), [_question(rng, fact) for fact in asked])


def _question(rng: Random, fact: tuple[str, str, str]) -> tuple[str, str]:
    name, thing, place = fact
    return rng.choice((
        (f"What does {name} keep?", f"{name} keeps a {thing}."),
        (f"Where is the {thing}?", f"The {thing} is in the {place}."),
        (f"Where does {name} keep the {thing}?", f"{name} keeps the {thing} in the {place}."),
    ))  # fmt: skip
