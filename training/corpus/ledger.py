"""Shelves with many things each: a question names a shelf, and more rows belong to it than one selection holds.

The candidate source finds the thing, by whose rows whole blocks are kept; the colour beside it is found by a later
scorer, which selects inside those blocks (REINDEX).  So that the first one does not do it all, training hides the
colours of a shelf from the attention of every layer up to it.
"""

from random import Random

from training.corpus.sample import Sample, dialogue
from training.corpus.words import COLOURS, NAMES, PLACES, THINGS, count_words, distinct

NUM_NAMED = 600
"""Words up to which a shelf has a name alone; longer ledgers have more shelves than there are names."""


def sample(rng: Random, size: int) -> Sample:
    """Shelves until the size is reached, at least two, and up to three questions."""
    owners, lines, shelves = _owners(rng, size), list[str](), list[tuple[str, dict[str, str]]]()
    width = max(3, min(len(THINGS), size // 8))
    for owner in owners:
        things = {thing: rng.choice(COLOURS) for thing in distinct(rng, THINGS, width)}
        shelves.append((owner, things))
        lines.append(f"{owner}: " + ", ".join(f"{thing} {colour}" for thing, colour in things.items()) + ".")
        if len(lines) > 1 and count_words(lines) >= size:
            break
    pairs = []
    for owner, things in rng.sample(shelves, min(3, len(shelves))):
        thing = rng.choice(list(things))
        pairs.append((f"Which colour has the {thing} of {owner}?", f"The {thing} of {owner} is {things[thing]}."))
    return dialogue("ledger", "Shelves.\n" + "\n".join(lines), pairs, late=COLOURS)


def _owners(rng: Random, size: int) -> list[str]:
    if size <= NUM_NAMED:
        return distinct(rng, NAMES, len(NAMES))
    return distinct(rng, [f"{name} of the {place}" for name in NAMES for place in PLACES], len(NAMES) * len(PLACES))
