"""The Engram hash once more, in plain Python integers of any size, one token at a time.

Shares nothing with the package: primes come from trial division, the look-back walks the tokens.
"""

from collections.abc import Sequence

DEAD = -1


def primes_from(start: int, count: int) -> list[int]:
    """The first `count` primes from `start` on."""
    found = []
    number = start
    while len(found) < count:
        if number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            found.append(number)
        number += 1
    return found


def window(compressed: Sequence[int], position: int, pad: int, max_ngram: int) -> list[int]:
    """The window of one token of a whole sequence, newest first."""
    seen: list[int] = []
    cut = False
    for back in range(max_ngram):
        cut = cut or position - back < 0 or compressed[position - back] == DEAD
        seen.append(pad if cut else compressed[position - back])
    return seen


def rows(seen: Sequence[int], multipliers: Sequence[int], moduli: Sequence[Sequence[int]]) -> list[int]:
    """Absolute rows of one window, order by order, head by head."""
    found, offset = [], 0
    for order, heads in enumerate(moduli, start=2):
        mixed = 0
        for token, factor in zip(seen[:order], multipliers[:order], strict=True):
            mixed ^= token * factor
        for prime in heads:
            found.append(offset + mixed % prime)
            offset += prime
    return found
