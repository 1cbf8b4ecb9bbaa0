"""Acceptance: the published vectors, and that neither rule changes what the target says.

The chi-square tests draw the first three tokens of 8,000 drafted texts over a vocabulary of 4, in which the target's
distribution depends on the token before and the draft's is another one.  64 triples, 63 degrees of freedom: a right
rule is above 130 about once in 10^6 seeds, and the seeds are fixed.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flash41.engine import speculative
from flash41.engine.noise import gumbel, uniforms
from flash41.engine.speculative import (
    Verdict,
    acceptance,
    drawn,
    equality,
    rejection,
    residual,
    shared_noise_token,
)
from helpers.tensors import vectors

VECTORS = vectors("dspark")
TOKENS, POSITIONS, DRAWS, MOST = 4, 3, 8_000, 130.0
BROKEN_DRAWS = 3000
NUM_DRAFTS = 2
"""Fewer drafts than positions, so that the third token comes from a first, a second or a third block."""


# The published arithmetic.


@pytest.mark.parametrize("case", VECTORS["greedy"], ids=lambda case: f"accepts{case['accepted']}")
def test_equality_vectors(case: dict[str, Any]) -> None:
    assert equality(case["drafts"], case["target_argmax"]) == Verdict(
        num_accepted=case["accepted"], tokens=tuple(case["emitted"])
    )


@given(st.lists(st.integers(0, 2), min_size=12, max_size=12), st.integers(0, 5))
def test_equality_emits_what_the_target_says_up_to_the_first_difference(tokens: list[int], num_drafts: int) -> None:
    drafts, target = tokens[:num_drafts], tokens[6 : 7 + num_drafts]
    verdict = equality(drafts, target)
    assert verdict.tokens == tuple(target[: verdict.num_accepted + 1])
    assert list(verdict.tokens[:-1]) == drafts[: verdict.num_accepted]
    assert verdict.num_accepted == num_drafts or drafts[verdict.num_accepted] != verdict.tokens[-1]


def test_target_tokens_behind_the_first_difference_are_not_asked_for() -> None:
    asked = []

    def target() -> Iterable[int]:
        for token in (5, 6, 1, 8):
            asked.append(token)
            yield token

    assert equality([5, 6, 7], target()).num_accepted == 2
    assert asked == [5, 6, 1]


def row(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("case", VECTORS["standard"]["cases"], ids=lambda case: f"row{case['row']}-{case['draft']}")
def test_rejection_vectors(case: dict[str, Any]) -> None:
    target, draft = (row(VECTORS["standard"][name][case["row"]]) for name in ("p_target", "p_draft"))
    assert acceptance(target, draft, case["draft"]) == pytest.approx(case["accept"], abs=1e-15)
    assert residual(target, draft).tolist() == pytest.approx(case["residual"], abs=1e-15)


def test_rejection_accepts_below_its_probability_and_replaces_from_the_residual() -> None:
    targets, drafts = ([row(p) for p in VECTORS["standard"][name]] for name in ("p_target", "p_draft"))

    def verdict(*pairs: tuple[float, float]) -> tuple[int, ...]:
        return rejection([0, 0], drafts, targets, pairs).tokens

    assert verdict((0.99, 0.5), (0.199, 0.5), (0.5, 0.6)) == (0, 0, 2)  # all accepted, one more from the last row
    assert verdict((0.99, 0.5), (0.201, 0.49), (0.5, 0.6)) == (0, 1)
    assert verdict((0.99, 0.5), (0.201, 0.51), (0.5, 0.6)) == (0, 2)
    assert rejection([1, 0], drafts, targets, [(0.41, 0.9)] * 3) == Verdict(num_accepted=0, tokens=(0,))
    assert rejection([], [], targets[:1], [(0.5, 0.95)]) == Verdict(num_accepted=0, tokens=(2,))


def test_rows_behind_the_first_rejection_are_not_asked_for() -> None:
    def rows(first: Sequence[float]) -> Iterable[Tensor]:
        yield row(first)
        raise AssertionError("a second row was asked for")

    assert rejection([0, 0], rows([0.5, 0.5]), rows([0.0, 1.0]), [(0.5, 0.5)] * 3) == Verdict(
        num_accepted=0, tokens=(1,)
    )


def test_equal_distributions_leave_no_residual_and_the_target_is_drawn() -> None:
    p = row([0.25, 0.75])
    assert torch.equal(residual(p, p), p)
    almost = row([0.25 + 4e-9, 0.75 - 4e-9])
    assert torch.equal(residual(almost, p), almost)
    assert residual(row([0.25 + 2e-8, 0.75 - 2e-8]), p).tolist() == [1.0, 0.0]


def test_a_draft_that_its_own_distribution_excludes_is_rejected() -> None:
    assert acceptance(row([1.0, 0.0]), row([0.0, 1.0]), 0) == 0.0
    assert acceptance(row([0.0, 1.0]), row([0.5, 0.5]), 0) == 0.0


def test_a_token_without_probability_is_never_drawn() -> None:
    p = row([0.0, 0.3, 0.0, 0.7, 0.0])
    assert [drawn(p, u) for u in (1e-300, 0.2999, 0.3001, 1 - 2.0**-53, 1.0)] == [1, 1, 3, 3, 3]
    assert drawn(p / 3, 0.31) == 3  # mass that rounding lost does not matter


# Losslessness.

TARGET, DRAFT = (
    torch.from_numpy(np.random.default_rng(seed).normal(size=(TOKENS + 1, TOKENS)) * 0.7).log_softmax(-1).unbind()
    for seed in (1, 2)
)
"""Log-probabilities by the token before; the last row opens a text."""
P_TARGET, P_DRAFT = [row.exp() for row in TARGET], [row.exp() for row in DRAFT]
NUM_POSITIONS = POSITIONS + NUM_DRAFTS
NUMBERS = uniforms(7, 0, DRAWS * NUM_POSITIONS * TOKENS).reshape(DRAWS, NUM_POSITIONS, TOKENS)
NOISE = torch.from_numpy(-np.log(-np.log(NUMBERS)))
"""Of each text and position, as `engine.noise` makes it of a seed and a position."""


def expected_triples() -> np.ndarray:
    p = torch.stack(P_TARGET).numpy()
    return np.array([p[TOKENS, a] * p[a, b] * p[b, c] for a, b, c in itertools.product(range(TOKENS), repeat=3)])


def chi_square(found: np.ndarray) -> float:
    """Pearson's statistic of the first three tokens against direct sampling."""
    counts = np.bincount(found @ [TOKENS**2, TOKENS, 1], minlength=TOKENS**3)
    expected = expected_triples() * len(found)
    assert expected.min() > 5, "too few draws for Pearson's statistic"
    return float(((counts - expected) ** 2 / expected).sum())


def texts(block: Callable[[int, int, int], Verdict], count: int = DRAWS) -> np.ndarray:
    """Three tokens of every text; `block(text, position, token before)` is one verify step."""
    found = []
    for number in range(count):
        text: list[int] = []
        while len(text) < POSITIONS:
            text += block(number, len(text), text[-1] if text else TOKENS).tokens
        found.append(text[:POSITIONS])
    return np.array(found)


def by_shared_noise(number: int, position: int, before: int) -> Verdict:
    noise, rows = NOISE[number, position:], [before]
    for k in range(NUM_DRAFTS):
        rows.append(shared_noise_token(DRAFT[rows[-1]], noise[k]))
    return equality(rows[1:], (shared_noise_token(TARGET[last], noise[k]) for k, last in enumerate(rows)))


def by_rejection(number: int, position: int, before: int) -> Verdict:
    # Of the numbers of a position one draws the draft, one accepts, one replaces.
    numbers, rows = NUMBERS[number, position : position + NUM_DRAFTS + 1].tolist(), [before]
    for k in range(NUM_DRAFTS):
        rows.append(drawn(P_DRAFT[rows[-1]], numbers[k][0]))
    draft_rows, target_rows = (P_DRAFT[last] for last in rows[:-1]), (P_TARGET[last] for last in rows)
    return rejection(rows[1:], draft_rows, target_rows, [(accepts, draws) for _, accepts, draws, _ in numbers])


def test_shared_noise_draws_from_the_target_and_gives_the_text_of_undrafted_decoding() -> None:
    found = texts(by_shared_noise)
    assert chi_square(found) < MOST
    for number in range(0, DRAWS, 100):
        text = [TOKENS]
        for position in range(POSITIONS):
            text.append(shared_noise_token(TARGET[text[-1]], NOISE[number, position]))
        assert text[1:] == found[number].tolist()


def test_rejection_draws_from_the_target() -> None:
    assert chi_square(texts(by_rejection)) < MOST


def test_the_noise_of_the_tests_is_the_one_of_the_sampler() -> None:
    first = uniforms(7, 0, TOKENS)
    assert np.array_equal(NUMBERS[0, 0], first)
    assert np.array_equal(NOISE[0, 0].numpy(), gumbel(7, 0, TOKENS))


def test_rejection_accepts_more_than_shared_noise_and_both_accept_something() -> None:
    shared, rejected = (
        np.mean([rule(number, 0, TOKENS).num_accepted for number in range(1000)])
        for rule in (by_shared_noise, by_rejection)
    )
    assert 0.3 < shared < rejected < NUM_DRAFTS


def always_accepted(_target: Tensor, _draft: Tensor, _token: int) -> float:
    return 1.0


def without_residual(target: Tensor, _draft: Tensor) -> Tensor:
    return target


@pytest.mark.parametrize(("name", "broken"), [("acceptance", always_accepted), ("residual", without_residual)])
def test_a_broken_rejection_rule_is_noticed(name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, name, broken)
    assert chi_square(texts(by_rejection, BROKEN_DRAWS)) > MOST


def test_a_draft_that_stays_in_place_of_the_token_that_rejects_it_is_noticed() -> None:
    def broken(number: int, position: int, before: int) -> Verdict:
        right = by_shared_noise(number, position, before)
        draft = shared_noise_token(DRAFT[before], NOISE[number, position])
        return Verdict(num_accepted=right.num_accepted, tokens=(draft, *right.tokens[1:]))

    assert chi_square(texts(broken, BROKEN_DRAWS)) > MOST


def test_nothing_is_asked_behind_a_draft_that_ends_the_answer() -> None:
    def ends(token: int) -> bool:
        return token == 1

    def rows(count: int) -> Iterable[Tensor]:
        yield from [row([0.0, 1.0])] * count
        raise AssertionError("a row behind the end was asked for")

    def tokens() -> Iterable[int]:
        yield from (0, 1)
        raise AssertionError("a token behind the end was asked for")

    ended = Verdict(num_accepted=2, tokens=(0, 1))
    assert equality([0, 1, 0], tokens(), ends) == ended
    assert rejection([1, 0], rows(1), rows(1), [(0.5, 0.5)] * 3, ends) == Verdict(num_accepted=1, tokens=(1,))
