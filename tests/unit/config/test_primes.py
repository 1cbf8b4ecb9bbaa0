from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.config.primes import dealt_primes, is_prime, next_primes, table_rows
from helpers.config_documents import release_config, tiny_config

# Last three digits of the release's moduli 16000xxx, in the order of engram.md section 2.
RELEASE_DIGITS = [
    57, 79, 81, 97, 121, 129, 133, 183, 189, 207, 211, 253, 277, 289, 307, 321,
    339, 381, 393, 399, 403, 409, 447, 463, 477, 487, 499, 507, 511, 573, 609, 627,
    667, 669, 693, 697, 711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889,
]  # fmt: skip


def sieve(limit: int) -> set[int]:
    composite = {multiple for n in range(2, int(limit**0.5) + 1) for multiple in range(n * n, limit, n)}
    return set(range(2, limit)) - composite


def naive_deal(vocab_size: int, num_heads: int, max_ngram: int, num_tables: int) -> list[list[list[int]]]:
    """The dealing rule word by word: the cursor restarts per table and order."""
    taken: set[int] = set()
    tables: list[list[list[int]]] = []
    for _ in range(num_tables):
        orders: list[list[int]] = []
        for _ in range(2, max_ngram + 1):
            cursor, row = vocab_size - 1, []
            for _ in range(num_heads):
                cursor += 1
                while cursor in taken or not all(cursor % d for d in range(2, int(cursor**0.5) + 1)) or cursor < 2:
                    cursor += 1
                taken.add(cursor)
                row.append(cursor)
            orders.append(row)
        tables.append(orders)
    return tables


def test_small_primes_equal_a_sieve() -> None:
    assert {n for n in range(-5, 20_000) if is_prime(n)} == sieve(20_000)


def test_strong_pseudoprimes_to_small_bases_are_composite() -> None:
    # Smallest strong pseudoprimes to the first 1, 2, ..., 9 prime bases, and Carmichael numbers.
    for n in (2047, 1373653, 25326001, 3215031751, 2152302898747, 3474749660383, 341550071728321,
              3825123056546413051, 561, 41041, 825265, 9746347772161):  # fmt: skip
        assert not is_prime(n), n


def test_large_known_primes_are_prime() -> None:
    assert is_prime(2**61 - 1)
    assert is_prime(2**63 - 25)
    assert not is_prime((2**31 - 1) ** 2)
    assert not is_prime((2**31 - 1) * (2**29 - 3))


def test_release_moduli_are_the_ones_the_specification_prints() -> None:
    engram = release_config().engram
    dealt = dealt_primes(engram.vocab_size, engram.num_heads, engram.max_ngram, 2)
    assert [prime for table in dealt for order in table for prime in order] == [16_000_000 + d for d in RELEASE_DIGITS]
    assert [[len(order) for order in table] for table in dealt] == [[8, 8, 8]] * 2


def test_table_rows_are_the_sums_the_configurations_state() -> None:
    for config in (release_config(), tiny_config()):
        engram = config.engram
        assert table_rows(engram.vocab_size, engram.num_heads, engram.max_ngram, 2) == engram.table_rows


def test_taken_primes_are_skipped_and_added() -> None:
    taken = {11, 17}
    assert next_primes(10, 3, taken) == (13, 19, 23)
    assert taken == {11, 13, 17, 19, 23}


@given(st.integers(1, 3000), st.integers(1, 4), st.integers(2, 5), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_dealing_equals_the_rule_word_by_word(vocab_size: int, num_heads: int, max_ngram: int, num_tables: int) -> None:
    dealt = dealt_primes(vocab_size, num_heads, max_ngram, num_tables)
    assert [[list(order) for order in table] for table in dealt] == naive_deal(
        vocab_size, num_heads, max_ngram, num_tables
    )
