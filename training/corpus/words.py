"""The small world: who and what there is in it.  The lists are short, so that a model of this size knows them all."""

from collections.abc import Sequence
from random import Random

NAMES = (
    "Anna", "Ben", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "Jana", "Karl", "Lena", "Milo", "Nora",
    "Otto", "Pia", "Quin", "Rosa", "Sami", "Tara", "Udo", "Vera", "Willi", "Yara",
)  # fmt: skip
PLACES = (
    "barn", "garden", "kitchen", "school", "market", "tower", "harbor", "forest", "library", "cellar", "attic",
    "mill", "bridge", "station",
)  # fmt: skip
COLOURS = (
    "red", "blue", "green", "yellow", "black", "white", "brown", "pink",
)  # fmt: skip
THINGS = (
    "lamp", "ball", "book", "key", "cup", "hat", "coat", "drum", "kite", "bell", "ring", "boat", "map", "spoon",
    "box", "scarf", "rope", "chair", "brush", "clock",
)  # fmt: skip
ANIMALS = (
    "cat", "dog", "goat", "hen", "horse", "mouse", "bird", "duck",
)  # fmt: skip
VERBS = (("sleeps", "sleep"), ("sings", "sing"), ("waits", "wait"), ("works", "work"), ("reads", "read"))
FILLERS = (
    "The wind is soft today.",
    "It rains a little.",
    "The sun is warm.",
    "A bird sings outside.",
    "The day is quiet.",
    "Somebody laughs far away.",
    "The bread is fresh.",
    "The road is long.",
)


def distinct(rng: Random, words: Sequence[str], count: int) -> list[str]:
    """Different words, at most as many as there are."""
    return rng.sample(list(words), min(count, len(words)))


def count_words(sentences: list[str]) -> int:
    """About as many as tokens."""
    return sum(len(sentence.split()) + 1 for sentence in sentences)
