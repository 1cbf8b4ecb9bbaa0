import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.checkpoint.randomness import NORMAL_DEVIATION, NORMAL_MEAN, normal, splitmix, words

MASK = 2**64 - 1
PINNED = [2930928637354974501, 13774311041509870690]
SEEDS = st.integers(min_value=-(2**70), max_value=2**70)


def reference(state: int, count: int) -> list[int]:
    """SplitMix64 as published, in Python integers."""
    outputs = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(z ^ (z >> 31))
    return outputs


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]),
    ],
)
def test_the_words_are_those_published_for_splitmix64(state: int, expected: list[int]) -> None:
    assert splitmix(state, 4).tolist() == expected
    assert reference(state, 4) == expected


@given(state=st.integers(0, MASK), count=st.integers(0, 40))
@settings(max_examples=50, deadline=None)
def test_any_state_gives_the_words_of_exact_integers(state: int, count: int) -> None:
    found = splitmix(state, count)
    assert found.dtype == np.uint64
    assert found.tolist() == reference(state, count)


@given(seed=SEEDS, short=st.integers(0, 20), long=st.integers(20, 40))
@settings(max_examples=30, deadline=None)
def test_a_longer_stream_begins_like_a_shorter_one(seed: int, short: int, long: int) -> None:
    assert words(seed, "name", short).tolist() == words(seed, "name", long)[:short].tolist()


def test_seed_and_name_each_choose_another_stream() -> None:
    streams = {tuple(words(seed, name, 3).tolist()) for seed in range(-3, 30) for name in ("a", "b", "", "1/a")}
    assert len(streams) == 33 * 4


def test_some_words_are_pinned() -> None:
    # A checkpoint made from a seed is these words; they may never change.
    assert words(41, "embed.weight", 2).tolist() == PINNED


def test_values_are_the_scaled_sums_of_four_parts_of_a_word() -> None:
    values = normal(3, "x", (5, 7))
    for value, word in zip(values.flatten().tolist(), words(3, "x", 35).tolist(), strict=True):
        total = sum((word >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
        assert value == float(np.float32((total - NORMAL_MEAN) / NORMAL_DEVIATION))


def test_the_deviation_is_that_of_four_uniforms() -> None:
    exact = math.sqrt(4 * (65536**2 - 1) / 12)
    assert abs(NORMAL_DEVIATION / exact - 1) < 1e-5


def test_values_have_mean_0_deviation_1_and_stay_within_3_5() -> None:
    values = normal(1, "large", (400, 1000)).astype(np.float64)
    count = values.size
    # Six standard errors of the mean and of the variance of a sum of four uniforms (kurtosis 2.7).
    assert abs(values.mean()) < 6 / math.sqrt(count)
    assert abs(values.var() - 1) < 6 * math.sqrt(1.7 / count)
    assert 3.2 < np.abs(values).max() < 3.5
    assert abs(np.corrcoef(values[:, :-1].flatten(), values[:, 1:].flatten())[0, 1]) < 6 / math.sqrt(count)


@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 3), (2, 1, 3)])
def test_a_shape_only_folds_the_same_values(shape: tuple[int, ...]) -> None:
    values = normal(5, "x", shape)
    assert values.shape == shape
    assert values.dtype == np.float32
    assert values.flatten().tolist() == normal(5, "x", (math.prod(shape),)).tolist()
