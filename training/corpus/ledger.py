"""Shelves with many things each: a question names a thing and its shelf, and its colour stands beside them.

The candidate source finds thing and shelf, by whose rows whole blocks are kept; the colour is found by a later scorer,
which selects inside those blocks (REINDEX).  So that the first one does not do it all, training hides the colours of a
ledger from the attention of every layer up to it.
"""

from random import Random

from training.corpus.sample import Sample, dialogue
from training.corpus.words import COLOURS, FILLERS, NAMES, THINGS, count_words, distinct


def sample(rng: Random, size: int) -> Sample:
    """Shelves until the size is reached, at least two, fillers between them where names run out; three questions."""
    lines, shelves = list[str](), list[tuple[str, dict[str, str]]]()
    width = max(3, min(len(THINGS), size // 15))
    for owner in distinct(rng, NAMES, len(NAMES)):
        things = {thing: rng.choice(COLOURS) for thing in distinct(rng, THINGS, width)}
        shelves.append((owner, things))
        lines.append(
            f"{owner}: " + ", ".join(f"{thing} of {owner}: {colour}" for thing, colour in things.items()) + "."
        )
        if len(lines) > 1 and count_words(lines) >= size:
            break
    missing = size - count_words(lines)
    while missing > 0:
        lines.insert(rng.randrange(len(lines)), rng.choice(FILLERS))
        missing -= 5
    pairs = []
    for owner, things in rng.sample(shelves, min(3, len(shelves))):
        thing = rng.choice(list(things))
        pairs.append((f"Which colour has the {thing} of {owner}?", f"The {thing} of {owner} is {things[thing]}."))
    return dialogue("ledger", "Shelves.\n" + "\n".join(lines), pairs, late=COLOURS)
