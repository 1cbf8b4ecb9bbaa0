"""Drills: several facts, shelves or places asked at once, in another order than they were told.

An answer of the scored families holds one or two words that must be looked up; here nearly every other word is one, so
looking up is learned from a fraction of the tokens.
"""

from random import Random

from training.corpus.sample import Sample, dialogue
from training.corpus.words import COLOURS, NAMES, PLACES, THINGS, count_words, distinct

MOST = 8
"""Things asked at once."""


def sample(rng: Random, size: int) -> Sample:
    """Owners, a shelf, or places of people."""
    return rng.choice((_owners, _owners, _shelf, _places))(rng, size)


def _owners(rng: Random, size: int) -> Sample:
    names = distinct(rng, NAMES, max(2, min(len(NAMES), size // 10)))
    things = distinct(rng, [f"{colour} {thing}" for colour in COLOURS for thing in THINGS], len(names))
    known = [(name, thing, rng.choice(PLACES)) for name, thing in zip(names, things, strict=True)]
    told = " ".join(f"{name} keeps a {thing} in the {place}." for name, thing, place in known)
    asked = rng.sample(known, min(MOST, len(known)))
    if rng.random() < 0.5:
        wanted = ", ".join(name for name, _, _ in asked)
        answer = ", ".join(f"{name} keeps a {thing} in the {place}" for name, thing, place in asked)
    else:
        wanted = ", ".join(thing for _, thing, _ in asked)
        answer = ", ".join(f"{thing} of {name} in the {place}" for name, thing, place in asked)
    return dialogue("lists", told, [(f"Who keeps what? {wanted}", f"{answer}.")])


def _shelf(rng: Random, size: int) -> Sample:
    owners = distinct(rng, NAMES, 2 if size < 60 else rng.randint(2, 5))
    width = max(2, min(len(THINGS), size // (2 * len(owners))))
    shelves = {owner: {thing: rng.choice(COLOURS) for thing in distinct(rng, THINGS, width)} for owner in owners}
    lines = [
        f"{owner}: " + ", ".join(f"{thing} {colour}" for thing, colour in things.items()) + "."
        for owner, things in shelves.items()
    ]
    pairs = []
    for owner, things in rng.sample(list(shelves.items()), 2):
        asked = rng.sample(list(things.items()), min(MOST, len(things)))
        names = ", ".join(thing for thing, _ in asked)
        pairs.append((f"Which colour has the {names} of {owner}?", ", ".join(f"{a} of {owner} {b}" for a, b in asked)))
    return dialogue("lists", "Shelves.\n" + "\n".join(lines), pairs, late=COLOURS)


def _places(rng: Random, size: int) -> Sample:
    """People move; where each is in the end."""
    people = distinct(rng, NAMES, 2 + size // 30)
    places = {name: rng.choice(PLACES) for name in people}
    sentences = [f"{name} is in the {place}." for name, place in places.items()]
    while count_words(sentences) < size:
        name = rng.choice(people)
        places[name] = rng.choice(PLACES)
        sentences.append(f"{name} goes to the {places[name]}.")
    asked = rng.sample(people, min(MOST, len(people)))
    answer = ", ".join(f"{name} is in the {places[name]}" for name in asked)
    return dialogue("lists", " ".join(sentences), [(f"Where is {', '.join(asked)}?", f"{answer}.")])
