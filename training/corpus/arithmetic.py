"""Sums and differences of small numbers, now and then worked out before the answer."""

from random import Random

from training.corpus.sample import Sample, dialogue, user


def sample(rng: Random, size: int) -> Sample:
    """One sum with its steps in thinking mode, or a few without."""
    if rng.random() < 0.4:
        a, b = rng.randint(2, 50), rng.randint(2, 49)
        ones, tens = (a % 10, b % 10), (a // 10, b // 10)
        steps = f"{a} + {b}: ones {ones[0]} + {ones[1]} = {sum(ones)}, tens {tens[0]} + {tens[1]} = {sum(tens)}."
        return Sample(family="arithmetic", messages=(user(f"What is {a} + {b}?"),), answer=f"{a + b}", reasoning=steps)
    return dialogue("arithmetic", "", [_sum(rng) for _ in range(max(1, min(6, size // 16)))])


def _sum(rng: Random) -> tuple[str, str]:
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    if rng.random() < 0.5:
        return f"What is {a} + {b}?", f"{a + b}"
    return f"What is {max(a, b)} - {min(a, b)}?", f"{abs(a - b)}"
