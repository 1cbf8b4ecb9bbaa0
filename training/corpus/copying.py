"""An identifier to repeat, and one to spell backwards or without its dash: what the window is for."""

from random import Random

from training.corpus.sample import Sample, dialogue

SIGNS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"


def sample(rng: Random, size: int) -> Sample:
    """Identifiers of five to nine signs, in as many turns as fit."""
    pairs = []
    for _ in range(max(1, min(6, size // 20))):
        name = "".join(rng.choice(SIGNS) for _ in range(rng.randint(5, 9)))
        cut = rng.randint(2, len(name) - 2)
        name = f"{name[:cut]}-{name[cut:]}"
        pairs.append((f"Repeat {name}", name))
    return dialogue("copying", "", pairs)
