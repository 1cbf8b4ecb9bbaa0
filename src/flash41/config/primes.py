"""Prime numbers: an exact test, and the search that gives the Engram tables their moduli.

Knows nothing of Engram beyond the dealing rule.  spec: engram.md section 2 (Primes).
"""

_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
LARGEST_EXACT = 318_665_857_834_031_151_167_461 - 1
"""Below the smallest strong pseudoprime to the first twelve prime bases (Sorenson and Webster, 2015)."""


def is_prime(n: int) -> bool:
    """Whether n is prime, by Miller-Rabin with the first twelve primes as bases: exact up to `LARGEST_EXACT`."""
    assert n <= LARGEST_EXACT, (n, LARGEST_EXACT)
    if n < 2:
        return False
    for witness in _WITNESSES:
        if n % witness == 0:
            return n == witness
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return not any(_is_composite_by(witness, n, odd, twos) for witness in _WITNESSES)


def _is_composite_by(witness: int, n: int, odd: int, twos: int) -> bool:
    x = pow(witness, odd, n)
    if x in (1, n - 1):
        return False
    for _ in range(twos - 1):
        x = x * x % n
        if x == n - 1:
            return False
    return True


def next_primes(start: int, count: int, taken: set[int]) -> tuple[int, ...]:
    """The `count` smallest primes above `start` that are not in `taken`, ascending; they are added to `taken`."""
    found: list[int] = []
    candidate = start
    while len(found) < count:
        candidate += 1
        if candidate not in taken and is_prime(candidate):
            found.append(candidate)
            taken.add(candidate)
    return tuple(found)


def dealt_primes(
    vocab_size: int, num_heads: int, max_ngram: int, num_tables: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The moduli of each table, order and head: `[table][order - 2][head]`.

    One set of taken primes for the model; per table and order the search restarts at vocab_size - 1, per head it takes
    the next prime not taken.  The release gets the first 48 primes from 16,000,000 on, dealt in (table, order, head)
    order.  spec: engram.md section 2.
    """
    # All restarts meet the same taken prefix, so one ascending search deals the same primes without walking it again.
    num_orders = max_ngram - 1
    primes = next_primes(vocab_size - 1, num_tables * num_orders * num_heads, set())
    rows = [primes[first : first + num_heads] for first in range(0, len(primes), num_heads)]
    return tuple(tuple(rows[table * num_orders : (table + 1) * num_orders]) for table in range(num_tables))


def table_rows(vocab_size: int, num_heads: int, max_ngram: int, num_tables: int) -> tuple[int, ...]:
    """Rows of each table: the sum of its moduli (rule N14)."""
    return tuple(sum(map(sum, table)) for table in dealt_primes(vocab_size, num_heads, max_ngram, num_tables))
