"""Shelves with many things each: a question names a shelf, and more rows belong to it than one selection holds.

The candidate source finds the thing, by whose rows whole blocks are kept; the colour beside it is found by a later
scorer, which selects inside those blocks (REINDEX).  So that the first one does not do it all, training hides the
colours of a shelf from the attention of every layer up to it.
"""

from random import Random

from training.corpus.sample import Sample, dialogue
from training.corpus.words import COLOURS, NAMES, THINGS, count_words, distinct


def sample(rng: Random, size: int) -> Sample:
    """Shelves until the size is reached, at least two, and up to three questions."""
    names, lines, shelves = distinct(rng, NAMES, len(NAMES)), list[str](), list[tuple[str, dict[str, str]]]()
    width = max(3, min(len(THINGS), size // 8))
    for name in names:
        things = {thing: rng.choice(COLOURS) for thing in distinct(rng, THINGS, width)}
        shelves.append((name, things))
        lines.append(f"{name}: " + ", ".join(f"{thing} {colour}" for thing, colour in things.items()) + ".")
        if len(lines) > 1 and count_words(lines) >= size:
            break
    pairs = []
    for name, things in rng.sample(shelves, min(3, len(shelves))):
        thing = rng.choice(list(things))
        pairs.append((f"Which colour has the {thing} of {name}?", f"The {thing} of {name} is {things[thing]}."))
    return dialogue("ledger", "Shelves.\n" + "\n".join(lines), pairs, late=COLOURS)
