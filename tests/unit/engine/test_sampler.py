import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from flash41.engine.noise import gumbel
from flash41.engine.request import Constraint, Request, SamplingParams
from flash41.engine.sampler import kept_tokens, processed, sample, sample_step
from flash41.errors import ProtocolError

LOGITS = (1.0, -0.5, 2.0, 0.0, 1.5, -3.0)
CHI_SQUARE_AT_1E_6 = {1: 23.9, 2: 27.6, 3: 30.7, 4: 33.4, 5: 35.9}
"""Upper quantiles at one in a million, by degrees of freedom."""
NUM_DRAWS = 1500
SMALL_LOGITS = st.lists(st.integers(min_value=-40, max_value=40).map(lambda n: n / 8), min_size=1, max_size=12)
SEEDS = st.integers(min_value=0, max_value=2**63 - 1)


def request(
    seed: int = 0,
    prompt_ids: Sequence[int] = (0,),
    output_ids: Sequence[int] = (),
    constraint: Constraint | None = None,
    request_id: int = 0,
    **values: Any,
) -> Request:
    return Request(
        request_id=request_id,
        prompt_ids=prompt_ids,
        params=SamplingParams(**values),
        seed=seed,
        eos_token_id=1,
        constraint=constraint,
        output_ids=list(output_ids),
    )


def row(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def probabilities(logits: Sequence[float], temperature: float) -> list[float]:
    top = max(logits)
    weights = [math.exp((logit - top) / temperature) for logit in logits]
    return [weight / math.fsum(weights) for weight in weights]


def oracle_kept(logits: Sequence[float], values: dict[str, Any]) -> set[int] | None:
    """The kept tokens in plain Python; None when a decision hangs on the last bits."""
    shares = probabilities(logits, values.get("temperature", 1.0))
    order = sorted(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))
    order = order[: values.get("top_k", len(order))]
    mass = math.fsum(shares[token_id] for token_id in order)
    kept, before = set(), 0.0
    for token_id in order:
        share = shares[token_id] / mass
        least = values.get("min_p", 0.0) * shares[order[0]] / mass
        if abs(before - values.get("top_p", 1.0)) < 1e-9 or (share != least and abs(share - least) < 1e-9):
            return None
        if before < values.get("top_p", 1.0) and share >= least:
            kept.add(token_id)
        before += share
    return kept


class Allow:
    """A constraint with a fixed set of tokens."""

    def __init__(self, *token_ids: int) -> None:
        self.pushed: list[int] = []
        self._token_ids = token_ids

    def allowed(self) -> NDArray[np.bool_]:
        mask = np.zeros(len(LOGITS), np.bool_)
        mask[list(self._token_ids)] = True
        return mask

    def push(self, token_id: int) -> None:
        self.pushed.append(token_id)


# Greedy.


def test_temperature_zero_takes_the_largest_whatever_the_seed() -> None:
    assert {sample(row(LOGITS), request(seed, temperature=0)).token_id for seed in range(20)} == {2}


@pytest.mark.parametrize("size", [4, 1024, 129_280])
def test_equal_maxima_go_to_the_lowest_id(size: int) -> None:
    logits = torch.zeros(size)
    logits[[size // 2, size - 1, size // 2 + 1]] = 3.0
    assert sample(logits, request(temperature=0)).token_id == size // 2
    assert sample(torch.zeros(size), request(temperature=0)).token_id == 0


# Distribution.


def chi_square(counts: Counter[int], shares: dict[int, float]) -> tuple[float, int]:
    """Statistic and degrees of freedom; the likeliest token and all tokens expected under 10 times share a cell."""
    means = {token_id: NUM_DRAWS * share / math.fsum(shares.values()) for token_id, share in shares.items()}
    likeliest = max(means, key=lambda token_id: means[token_id])
    rare = {token_id for token_id, mean in means.items() if mean < 10} | {likeliest}
    cells = [rare, *({token_id} for token_id in means if token_id not in rare)]
    statistic = 0.0
    for cell in cells:
        mean = math.fsum(means[token_id] for token_id in cell)
        statistic += (sum(counts[token_id] for token_id in cell) - mean) ** 2 / mean
    return statistic, len(cells) - 1


@pytest.mark.parametrize(
    ("varied", "values"),
    [
        ("seed", {}),
        ("position", {}),
        ("seed", {"temperature": 0.5}),
        ("position", {"temperature": 2.0}),
        ("seed", {"top_k": 3}),
        ("position", {"top_p": 0.7}),
        ("seed", {"min_p": 0.2}),
        ("position", {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.05}),
        ("seed", {"presence_penalty": 1.0, "output_ids": (2,)}),
    ],
    ids=str,
)
def test_draws_follow_the_softmax_of_what_is_kept(varied: str, values: dict[str, Any]) -> None:
    penalty = values.get("presence_penalty", 0.0)
    logits = [logit - penalty * (token_id == 2) for token_id, logit in enumerate(LOGITS)]
    kept = oracle_kept(logits, values)
    assert kept is not None
    counts: Counter[int] = Counter()
    for draw in range(NUM_DRAWS):
        key = {"seed": draw} if varied == "seed" else {"seed": 41, "prompt_ids": range(draw)}
        counts[sample(row(LOGITS), request(**key, **values)).token_id] += 1
    assert set(counts) <= kept
    every = probabilities(logits, values.get("temperature", 1.0))
    statistic, freedom = chi_square(counts, {token_id: every[token_id] for token_id in kept})
    assert statistic < CHI_SQUARE_AT_1E_6[freedom]


@settings(deadline=None, max_examples=100)
@given(SMALL_LOGITS, SEEDS, st.integers(min_value=1, max_value=50), st.sampled_from([0.25, 1.0, 2.0]))
def test_a_draw_is_the_argmax_of_scores_and_noise(
    logits: list[float], seed: int, position: int, temperature: float
) -> None:
    noise = gumbel(seed, position, len(logits))
    sums = [logit / temperature + float(noise[token_id]) for token_id, logit in enumerate(logits)]
    ranked = sorted(sums)
    assume(len(sums) == 1 or ranked[-1] - ranked[-2] > 1e-9)
    drawn = sample(row(logits), request(seed, prompt_ids=[0] * position, temperature=temperature))
    assert drawn.token_id == sums.index(ranked[-1])


# Independence.


def test_a_seeded_row_draws_the_same_token_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(12, 1024, generator=generator)
    kinds = [{}, {"top_p": 0.8}, {"top_k": 40, "temperature": 0.7}, {"temperature": 0}, {"min_p": 0.1, "logprobs": 3}]
    requests = [
        request(seed=n % 3, prompt_ids=[0] * (n + 1), output_ids=[n] * (n % 4), request_id=n, **kinds[n % len(kinds)])
        for n in range(12)
    ]
    together = sample_step(logits, requests)
    assert list(together) == list(range(12))
    for n in range(12):
        assert sample_step(logits[n : n + 1], [requests[n]]) == {n: together[n]}
    order = [7, 2, 11, 0]
    assert sample_step(logits[order], [requests[n] for n in order]) == {n: together[n] for n in order}


def test_the_position_counts_and_not_what_was_prompt_or_answer() -> None:
    whole = [sample(row(LOGITS), request(9, prompt_ids=[0] * (n + 1))).token_id for n in range(30)]
    split = [sample(row(LOGITS), request(9, output_ids=[0] * n)).token_id for n in range(30)]
    assert whole == split
    assert len(set(whole)) > 1


def test_logits_are_left_as_they_are() -> None:
    logits = row(LOGITS)
    values = {"logit_bias": {1: 5.0}, "repetition_penalty": 1.5, "frequency_penalty": 1.0, "top_k": 2}
    sample(logits, request(output_ids=(2, 2), constraint=Allow(1, 2), **values))
    assert torch.equal(logits, row(LOGITS))


# What is kept.


@settings(deadline=None, max_examples=300)
@given(
    SMALL_LOGITS,
    st.fixed_dictionaries(
        {},
        optional={
            "top_k": st.integers(min_value=1, max_value=13),
            "top_p": st.floats(min_value=0.01, max_value=1.0),
            "min_p": st.floats(min_value=0.0, max_value=1.0),
        },
    ),
)
def test_top_k_top_p_and_min_p_keep_what_their_definitions_keep(logits: list[float], values: dict[str, Any]) -> None:
    expected = oracle_kept(logits, values)
    assume(expected is not None)
    scores = row(logits).double()
    kept = kept_tokens(scores, SamplingParams(**values))
    finite = kept.isfinite()
    assert set(finite.nonzero().flatten().tolist()) == expected
    assert torch.equal(kept[finite], scores[finite])


def test_ties_at_the_edge_keep_the_lower_ids() -> None:
    scores = torch.zeros(6, dtype=torch.float64)
    for values in ({"top_k": 2}, {"top_p": 0.3}):
        assert kept_tokens(scores, SamplingParams(**values)).isfinite().nonzero().flatten().tolist() == [0, 1]
    assert kept_tokens(scores, SamplingParams(min_p=1.0)).isfinite().all()


def test_the_likeliest_token_always_stays() -> None:
    scores = torch.tensor([0.0, 3.0, 1.0], dtype=torch.float64)
    for values in ({"top_k": 1}, {"top_p": 1e-12}, {"min_p": 1.0}):
        assert kept_tokens(scores, SamplingParams(**values)).isfinite().tolist() == [False, True, False]


def test_the_smallest_temperature_takes_the_largest_logit() -> None:
    for values in ({}, {"top_p": 0.9}, {"min_p": 0.1}):
        drawn = {
            sample(row([-5.0, -1.0, -2.0]), request(seed, temperature=1e-300, **values)).token_id for seed in range(9)
        }
        assert drawn == {1}


# Penalties, bias, constraint.


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(min_value=0, max_value=5), min_size=1, max_size=6),
    st.lists(st.integers(min_value=0, max_value=5), max_size=6),
    st.floats(min_value=0.1, max_value=2.0),
    st.floats(min_value=-2.0, max_value=2.0),
    st.floats(min_value=-2.0, max_value=2.0),
    st.dictionaries(st.integers(min_value=0, max_value=5), st.floats(min_value=-100, max_value=100), max_size=3),
)
def test_penalties_and_bias_change_the_logits_by_their_definitions(
    prompt: list[int], output: list[int], repetition: float, presence: float, frequency: float, bias: dict[int, float]
) -> None:
    expected = []
    for token_id, logit in enumerate(LOGITS):
        if token_id in prompt or token_id in output:
            logit = logit / repetition if logit > 0 else logit * repetition
        count = output.count(token_id)
        expected.append(logit - frequency * count - presence * (count > 0) + bias.get(token_id, 0.0))
    values = {"repetition_penalty": repetition, "presence_penalty": presence, "frequency_penalty": frequency}
    scores = processed(row(LOGITS), request(prompt_ids=prompt, output_ids=output, logit_bias=bias, **values))
    assert scores.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_bias_can_decide_a_greedy_choice() -> None:
    assert sample(row(LOGITS), request(temperature=0, logit_bias={5: 100})).token_id == 5
    assert sample(row(LOGITS), request(temperature=0, logit_bias={2: -100})).token_id == 4


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_constraint_hides_tokens_and_learns_the_chosen_one(temperature: float) -> None:
    for seed in range(30):
        constraint = Allow(1, 5)
        values = {"logit_bias": {2: 100}, "temperature": temperature, "top_k": 4}
        token_id = sample(row(LOGITS), request(seed, constraint=constraint, **values)).token_id
        assert token_id in (1, 5)
        assert constraint.pushed == [token_id]


# Log-probabilities.


def test_log_probabilities_are_those_of_the_raw_logits() -> None:
    shares = probabilities(LOGITS, 1.0)
    values = {"temperature": 0, "logit_bias": {3: 100}, "logprobs": 4}
    token = sample(row(LOGITS), request(**values))
    assert token.token_id == 3
    assert token.logprob == pytest.approx(math.log(shares[3]), abs=1e-12)
    assert [token_id for token_id, _ in token.top_logprobs] == [2, 4, 0, 3]
    expected = [math.log(shares[token_id]) for token_id in (2, 4, 0, 3)]
    assert [logprob for _, logprob in token.top_logprobs] == pytest.approx(expected, abs=1e-12)


def test_equal_alternatives_are_reported_by_id_and_none_unless_asked() -> None:
    assert [pair[0] for pair in sample(torch.zeros(50), request(logprobs=20)).top_logprobs] == list(range(20))
    chosen = sample(row(LOGITS), request(temperature=0, logprobs=0))
    assert chosen.logprob is not None
    assert chosen.top_logprobs == ()
    assert sample(row(LOGITS), request(temperature=0)).logprob is None


# Broken rows.


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_row_is_named_and_gives_no_token(value: float, temperature: float) -> None:
    logits = torch.zeros(2, 8)
    logits[1, 3] = value
    requests = [request(request_id=n, prompt_ids=[0] * 5, temperature=temperature) for n in (4, 17)]
    with pytest.raises(ProtocolError, match=r"request 17: logits at position 5: got .*, expected .*numbers"):
        sample_step(logits, requests)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_row_without_any_possible_token_is_named(temperature: float) -> None:
    with pytest.raises(ProtocolError, match=r"request 3: tokens possible at position 1: got 0, expected at least one"):
        sample(row(LOGITS), request(request_id=3, constraint=Allow(), temperature=temperature))


def test_a_token_with_no_chance_at_all_is_never_drawn() -> None:
    logits = row([-math.inf, 0.0, -math.inf, -1.0])
    for values in ({}, {"top_p": 0.999}, {"top_k": 4}, {"temperature": 0}):
        assert {sample(logits, request(seed, **values)).token_id for seed in range(50)} <= {1, 3}


def test_tokens_ahead_count_as_tokens_of_the_answer() -> None:
    values = {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5, "logprobs": 2}
    logits = torch.linspace(-2, 3, 32)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, **values)  # type: ignore[arg-type]
        known = {"prompt_ids": (3, 4), "params": params, "seed": 5, "eos_token_id": 1, "request_id": 0}
        behind = Request(**known, output_ids=[31, 30, 31])  # type: ignore[arg-type]
        ahead = Request(**known, output_ids=[31])  # type: ignore[arg-type]
        assert sample(logits, ahead, (30, 31)) == sample(logits, behind)
        assert sample(logits, ahead) != sample(logits, behind)
