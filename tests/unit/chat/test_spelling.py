from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.chat.spelling import MarkerGuard, Spellings
from flash41.chat.tokenizer import Tokenizer
from helpers.constrained import CODEC, VOCAB_SIZE

SPELLINGS = Spellings(CODEC.tokenizer)
MARKERS = ("</think>", "<｜DSML｜")
PIECES = st.lists(
    st.sampled_from(["<", "</", "th", "in", "k", ">", "x", "<｜", "DSM", "L", "｜", "</think", "\n"]), max_size=8
)


def test_all_bytes_are_those_of_each_token(release: Tokenizer) -> None:
    assert CODEC.tokenizer.all_token_bytes() == [
        CODEC.tokenizer.token_bytes(token_id) for token_id in range(VOCAB_SIZE)
    ]
    everything = release.all_token_bytes()
    assert len(everything) == release.vocab_size
    for token_id in (0, 1, 300, 4105, 128_000, 128_821, 129_264, 129_279):
        assert everything[token_id] == release.token_bytes(token_id)


@pytest.mark.parametrize("start", [b"<", b" th", b"\xef", b"zzzz", b"the"])
def test_tokens_beginning_with_bytes_are_found(start: bytes) -> None:
    expected = {
        token_id
        for token_id, written in enumerate(SPELLINGS.of_token)
        if written.startswith(start) and token_id not in CODEC.tokenizer.control_ids
    }
    assert set(SPELLINGS.beginning(start).tolist()) == expected


def test_tokens_holding_a_marker_are_found_and_control_tokens_are_not_among_them() -> None:
    expected = {
        token_id
        for token_id, written in enumerate(SPELLINGS.of_token)
        if b"in" in written and token_id not in CODEC.tokenizer.control_ids
    }
    assert set(SPELLINGS.holding(b"in").tolist()) == expected
    assert SPELLINGS.holding(b"</think>").tolist() == []


@settings(deadline=None, max_examples=80)
@given(PIECES)
def test_exactly_the_tokens_that_complete_a_marker_are_blocked(pieces: list[str]) -> None:
    text = "".join(pieces)
    for marker in MARKERS:
        text = text.replace(marker, "")
    ids = CODEC.tokenizer.encode(text) if text else []
    pushed = MarkerGuard(SPELLINGS, MARKERS)
    for token_id in ids:
        pushed.push(token_id)
    for guard in (pushed, MarkerGuard(SPELLINGS, MARKERS, text)):
        mask = np.ones(VOCAB_SIZE, np.bool_)
        guard.block(mask)
        written = text.encode()
        blocked = {
            token_id
            for token_id, more in enumerate(SPELLINGS.of_token)
            if any((written + more).count(marker.encode()) > written.count(marker.encode()) for marker in MARKERS)
        }
        assert set(np.nonzero(~mask)[0].tolist()) == blocked - CODEC.tokenizer.control_ids


def test_base_tokens_are_sorted_by_their_bytes() -> None:
    found = SPELLINGS.beginning(b"t").tolist()
    assert all(SPELLINGS.of_token[one] <= SPELLINGS.of_token[other] for one, other in pairwise(found))
    assert len(found) > 3
