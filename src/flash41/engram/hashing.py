"""From compressed token ids to table rows: multiply, XOR, remainder, all in exact 64-bit integers.

    window t0 (current), t1, t2, t3 (1, 2, 3 tokens back)
    h2 = t0*m0 ^ t1*m1        h3 = h2 ^ t2*m2        h4 = h3 ^ t3*m3
    row of column c = (order-2)*heads + head:  offset[c] + h_order mod modulus[order][head]

Release, layer 1, window (5, 4, 3, 9): column 0 is row 22259, column 23 is row 376944994 of 384006168.

History is a function of the request's token list alone: any split of the same tokens gives the same rows.  What lies
before the first token, and at or behind an image position (DEAD), reads as padding.

Products need 62 to 63 bits, so nothing here may pass through 32-bit integers or doubles.  Knows nothing of text, files
or tensors.  spec: engram.md sections 2 and 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flash41.config.architecture import EngramConfig
from flash41.config.primes import dealt_primes
from flash41.errors import ProtocolError, complaint

Ids = npt.NDArray[np.int64]

DEAD = -1
"""Compressed id of an image position.  Kept as such, not as padding, so that text behind the image is cut as well."""

SEED_STEP = 10007
"""The multipliers of layer l are drawn with seed 10007 * l."""

INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramHash:
    """The constants of one layer's hash."""

    layer_id: int
    """Layer in front of which the table is added."""
    num_classes: int
    """Compressed ids are 0 .. num_classes-1; larger ones would overflow the products."""
    multipliers: tuple[int, ...]
    """Odd factor of each look-back, the current token first."""
    moduli: tuple[tuple[int, ...], ...]
    """Primes by order (2 first) and head."""
    offsets: tuple[int, ...]
    """First row of each column."""
    num_rows: int
    """Rows of the table: the sum of all moduli."""

    @property
    def max_ngram(self) -> int:
        """Tokens in a window."""
        return len(self.multipliers)


def engram_hashes(config: EngramConfig) -> tuple[EngramHash, ...]:
    """The hash of every Engram layer, in the order of `layer_ids`; derived, a checkpoint does not carry them."""
    dealt = dealt_primes(config.vocab_size, config.num_heads, config.max_ngram, len(config.layer_ids))
    return tuple(
        _layer_hash(config, layer_id, moduli) for layer_id, moduli in zip(config.layer_ids, dealt, strict=True)
    )


def _layer_hash(config: EngramConfig, layer_id: int, moduli: tuple[tuple[int, ...], ...]) -> EngramHash:
    offsets = [0]
    for modulus in (prime for order in moduli for prime in order):
        offsets.append(offsets[-1] + modulus)
    return EngramHash(
        layer_id=layer_id,
        num_classes=config.compressed_vocab_size,
        multipliers=multipliers(layer_id, config.max_ngram, config.compressed_vocab_size),
        moduli=moduli,
        offsets=tuple(offsets[:-1]),
        num_rows=offsets[-1],
    )


def multipliers(layer_id: int, max_ngram: int, num_classes: int) -> tuple[int, ...]:
    """Odd factors 2r + 1 with r drawn below floor(floor((2^63-1) / num_classes) / 2).

    The bound keeps every product with a compressed id below 2^63.
    """
    bound = INT64_MAX // num_classes // 2
    draws = np.random.default_rng(SEED_STEP * layer_id).integers(0, bound, size=max_ngram, dtype=np.int64)
    return tuple(2 * int(draw) + 1 for draw in draws)


def windows(compressed: Ids, history: Sequence[int], pad: int, max_ngram: int) -> Ids:
    """Window of each of T tokens as [T, max_ngram], newest first, with `pad` where the look-back is cut.

    `history` holds the compressed ids before the first token, oldest first, DEAD for image positions; at most
    max_ngram - 1 of them are read, and fewer mean that the sequence begins there.  The cut is cumulative: behind the
    first DEAD everything is padding, so no n-gram spans an image.
    """
    num_tokens, reach = len(compressed), max_ngram - 1
    before = np.asarray(history, dtype=np.int64)
    line = np.concatenate([np.full(reach, DEAD, dtype=np.int64), before, compressed])[-(num_tokens + reach) :]
    looks = np.stack([line[reach - back : reach - back + num_tokens] for back in range(max_ngram)], axis=1)
    alive = np.logical_and.accumulate(looks != DEAD, axis=1)
    return np.where(alive, looks, np.int64(pad))


def row_ids(constants: EngramHash, seen: Ids) -> Ids:
    """Absolute rows [T, columns] of windows [T, max_ngram]; column = (order-2)*heads + head.

    ProtocolError if an id is outside 0 .. num_classes-1: there the products could wrap.
    """
    if seen.size and not 0 <= seen.min() <= seen.max() < constants.num_classes:
        span = (int(seen.min()), int(seen.max()))
        expected = f"compressed ids in 0..{constants.num_classes - 1}"
        raise ProtocolError(
            complaint(f"windows of Engram layer {constants.layer_id}, least and largest", span, expected)
        )
    products = seen * np.array(constants.multipliers, dtype=np.int64)
    mixed = np.bitwise_xor.accumulate(products, axis=1)[:, 1:]  # [T, orders]
    buckets = mixed[:, :, None] % np.array(constants.moduli, dtype=np.int64)  # [T, orders, heads]
    offsets = np.array(constants.offsets, dtype=np.int64)
    return buckets.reshape(len(seen), len(offsets)) + offsets


def rows_for_span(constants: EngramHash, compressed: Ids, start: int, length: int, pad: int) -> Ids:
    """Rows of tokens start .. start+length-1 of a request whose compressed ids, from position 0 on, are given."""
    history = compressed[max(0, start - constants.max_ngram + 1) : start]
    span = compressed[start : start + length]
    return row_ids(constants, windows(span, history.tolist(), pad, constants.max_ngram))
