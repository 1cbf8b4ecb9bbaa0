"""Drills: little is told and much is asked, in another order than it was told, turn after turn.

A model learns to look something up from the number of times it has to, so most words of these answers are looked up,
where an answer of the scored families has one or two such words.  From bare pairs, where a word is known by the one
before it, to people, shelves and places, where what is asked for stands several words from what it is known by.
"""

from collections.abc import Callable, Sequence
from random import Random

from training.corpus.sample import Sample, dialogue
from training.corpus.words import ANIMALS, COLOURS, NAMES, PLACES, THINGS, distinct

MOST = 6
"""Things asked in one turn."""
TOLD = 0.35
"""Part of the words in which things are told."""
WORDS = (*NAMES, *PLACES, *COLOURS, *THINGS, *ANIMALS)
Turn = tuple[str, str]


def sample(rng: Random, size: int) -> Sample:
    """What is told, and turns about it until the size is reached."""
    kind = rng.choice((_pairs, _owners, _owners, _shelves, _shelves, _last, _last))
    told, ask, late = kind(rng, max(6, int(size * TOLD)))
    turns = [ask()]
    used = len(told.split())
    while used < size:
        turns.append(ask())
        used += len(turns[-1][0].split()) + len(turns[-1][1].split()) + 4
    return dialogue("lists", told, turns, late=late)


Told = tuple[str, Callable[[], Turn], Sequence[str]]
"""What is told, what makes a turn about it, and words that are hidden from early layers."""


def _pairs(rng: Random, size: int) -> Told:
    """A word and another."""
    keys = distinct(rng, WORDS, max(2, size // 3))
    values = {key: rng.choice(WORDS) for key in keys}

    def ask() -> Turn:
        asked = distinct(rng, keys, MOST)
        return f"Say {', '.join(asked)}", ", ".join(f"{key} {values[key]}" for key in asked)

    return ", ".join(f"{key} {value}" for key, value in values.items()) + ".", ask, ()


def _owners(rng: Random, size: int) -> Told:
    """Who keeps what where, known by the name or by the thing."""
    names = distinct(rng, NAMES, max(2, size // 9))
    things = distinct(rng, [f"{colour} {thing}" for colour in COLOURS for thing in THINGS], len(names))
    known = [(name, thing, rng.choice(PLACES)) for name, thing in zip(names, things, strict=True)]

    def ask() -> Turn:
        asked = rng.sample(known, min(MOST, len(known)))
        by_name, by_thing = ", ".join(fact[0] for fact in asked), ", ".join(fact[1] for fact in asked)
        question, form = rng.choice((
            (f"Who keeps what where? {by_name}", "{0} keeps a {1} in the {2}"),
            (f"What? {by_name}", "{0} keeps a {1}"),
            (f"Where? {by_thing}", "{1} in the {2}"),
        ))  # fmt: skip
        return question, ", ".join(form.format(*fact) for fact in asked) + "."

    return " ".join(f"{name} keeps a {thing} in the {place}." for name, thing, place in known), ask, ()


def _shelves(rng: Random, size: int) -> Told:
    """Things of a shelf, each with its colour; a thing may stand on several shelves."""
    owners = distinct(rng, NAMES, rng.randint(2, max(2, min(5, size // 8))))
    width = max(2, min(len(THINGS), size // (5 * len(owners))))
    shelves = {owner: {thing: rng.choice(COLOURS) for thing in distinct(rng, THINGS, width)} for owner in owners}

    def ask() -> Turn:
        owner = rng.choice(owners)
        asked = rng.sample(list(shelves[owner].items()), min(MOST, width))
        named = ", ".join(thing for thing, _ in asked)
        return f"Which colour has the {named} of {owner}?", ", ".join(f"{a} of {owner} is {b}" for a, b in asked) + "."

    lines = (
        f"{owner}: " + ", ".join(f"{thing} of {owner}: {colour}" for thing, colour in things.items()) + "."
        for owner, things in shelves.items()
    )
    return "Shelves.\n" + "\n".join(lines), ask, COLOURS


_CHANGES = (
    ("goes to the", "Where is {0}?", "is in the"),
    ("takes a", "What did {0} take last?", "took a"),
    ("sees a", "What did {0} see last?", "saw a"),
)
"""How a change is told, asked for and answered; what changed stands behind the words."""


def _last(rng: Random, size: int) -> Told:
    """People go, take and see; how it is in the end."""
    people = distinct(rng, NAMES, max(2, size // 24))
    choices = (PLACES, [f"{colour} {thing}" for colour in COLOURS for thing in THINGS], ANIMALS)
    known: list[dict[str, str]] = [{} for _ in _CHANGES]
    sentences = list[str]()
    while len(sentences) < len(people) or 5 * len(sentences) < size:
        name = people[len(sentences)] if len(sentences) < len(people) else rng.choice(people)
        kind = rng.randrange(len(_CHANGES))
        known[kind][name] = rng.choice(choices[kind])
        sentences.append(f"{name} {_CHANGES[kind][0]} {known[kind][name]}.")

    def ask() -> Turn:
        kind = rng.choice([kind for kind, found in enumerate(known) if found])
        asked = distinct(rng, list(known[kind]), MOST)
        _, question, form = _CHANGES[kind]
        answer = ", ".join(f"{name} {form} {known[kind][name]}" for name in asked)
        return question.format(", ".join(asked)), f"{answer}."

    return " ".join(sentences), ask, ()
