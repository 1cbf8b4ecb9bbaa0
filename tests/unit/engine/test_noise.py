import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.engine.noise import acceptance_uniforms, gumbel, uniforms

GOLDEN = 0x9E3779B97F4A7C15
WORD = 2**64
SEEDS = st.integers(min_value=0, max_value=2**63 - 1)
POSITIONS = st.integers(min_value=0, max_value=2**20)
CHI_SQUARE_63_AT_1E_6 = 131.4
"""Upper quantile of chi-square with 63 degrees of freedom at one in a million (Wilson-Hilferty)."""


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def uniform(seed: int, position: int, token_id: int) -> float:
    key = mix((mix((seed + 1) * GOLDEN % WORD) + position * GOLDEN + 1) % WORD)
    return ((mix((key + (token_id + 1) * GOLDEN) % WORD) >> 12) + 0.5) / 2**52


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_oracle_is_the_published_generator() -> None:
    outputs = [mix((1234567 + (n + 1) * GOLDEN) % WORD) for n in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@settings(deadline=None, max_examples=100)
@given(SEEDS, POSITIONS)
def test_numbers_are_those_of_the_oracle_to_the_bit(seed: int, position: int) -> None:
    assert uniforms(seed, position, 5).tolist() == [uniform(seed, position, token_id) for token_id in range(5)]


def test_recorded_values_do_not_change() -> None:
    assert [int(u * 2**52) for u in uniforms(41, 7, 3)] == [3029082099500803, 1505789088956841, 1395790815619745]
    assert gumbel(2**63 - 1, 2**20, 2).tolist() == pytest.approx([0.14505156664017824, 1.8866025018838462], rel=1e-12)


@settings(deadline=None, max_examples=50)
@given(SEEDS, POSITIONS, st.integers(min_value=1, max_value=200))
def test_a_tokens_noise_does_not_depend_on_the_size_of_the_vocabulary(seed: int, position: int, count: int) -> None:
    assert np.array_equal(gumbel(seed, position, count), gumbel(seed, position, 200)[:count])


@settings(deadline=None, max_examples=50)
@given(SEEDS, POSITIONS)
def test_noise_is_the_double_logarithm(seed: int, position: int) -> None:
    expected = [-math.log(-math.log(u)) for u in uniforms(seed, position, 20).tolist()]
    assert gumbel(seed, position, 20).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda count: uniforms(3, 5, count), id="over tokens"),
        pytest.param(lambda count: [uniforms(3, position, 1)[0] for position in range(count)], id="over positions"),
        pytest.param(lambda count: [uniforms(seed, 5, 1)[0] for seed in range(count)], id="over seeds"),
    ],
)
def test_numbers_fill_the_unit_interval_evenly(draw: Callable[[int], Sequence[float]]) -> None:
    draws = np.array(draw(10_000))
    assert draws.min() > 0
    assert draws.max() < 1
    assert chi_square(np.histogram(draws, bins=64, range=(0, 1))[0]) < CHI_SQUARE_63_AT_1E_6


@pytest.mark.parametrize(
    ("first", "second"), [((1, 1), (1, 2)), ((1, 1), (2, 1)), ((0, 1), (1, 0)), ((0, 0), (2**62, 0))]
)
def test_neighbouring_keys_give_unrelated_numbers(first: tuple[int, int], second: tuple[int, int]) -> None:
    a, b = uniforms(*first, 20_000), uniforms(*second, 20_000)
    joint = np.histogram2d(a, b, bins=8, range=((0, 1), (0, 1)))[0].ravel()
    assert chi_square(joint) < CHI_SQUARE_63_AT_1E_6


def test_noise_has_the_mean_and_spread_of_its_distribution() -> None:
    count = 100_000
    noise = gumbel(1, 1, count)
    variance = math.pi**2 / 6
    # Five standard errors; the fourth central moment of the distribution is 27/5 of the squared variance.
    assert abs(noise.mean() - np.euler_gamma) < 5 * math.sqrt(variance / count)
    assert abs(noise.var() - variance) < 5 * variance * math.sqrt((27 / 5 - 1) / count)


@given(seed=SEEDS, position=POSITIONS)
@settings(max_examples=30, deadline=None)
def test_what_accepts_a_draft_is_independent_of_what_drew_it(seed: int, position: int) -> None:
    pair = acceptance_uniforms(seed, position)
    assert pair == acceptance_uniforms(seed, position)
    assert all(0 < number < 1 for number in pair)
    assert not set(pair) & set(uniforms(seed, position, 64).tolist())
    assert pair == (uniform(seed + 2**63, position, 0), uniform(seed + 2**63, position, 1))
