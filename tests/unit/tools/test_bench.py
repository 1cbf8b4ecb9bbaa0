from pathlib import Path

import pytest

from flash41.engine.llm import LLM
from flash41.errors import RequestError
from flash41.tools.bench import BenchWish, Spread, Wave, latency, throughput


@pytest.fixture(scope="module")
def llm(tiny_directory: Path) -> LLM:
    return LLM(tiny_directory, max_model_len=16, max_num_seqs=3)


def wish(num_requests: int, concurrency: int) -> BenchWish:
    return BenchWish(prompt_tokens=4, output_tokens=3, num_requests=num_requests, concurrency=concurrency)


def check_order(spread: Spread) -> None:
    assert 0 < spread.minimum <= spread.median <= spread.maximum


def test_both_concurrencies_are_measured_in_one_run(llm: LLM) -> None:
    seen: list[tuple[int, int]] = []
    one, three = throughput(llm, wish(4, 3), lambda done, count: seen.append((done, count)))
    assert (one.concurrency, three.concurrency) == (1, 3)
    for speed in (one, three):
        assert speed.prefill_tokens_per_second > 0
        assert speed.decode_tokens_per_second > 0
        assert speed.output_tokens_per_second > 0
    assert seen == [(done, 8) for done in range(1, 9)]
    assert llm.engine.num_unfinished == 0


def test_a_concurrency_of_one_is_measured_once(llm: LLM) -> None:
    (speed,) = throughput(llm, wish(2, 1))
    assert speed.concurrency == 1


def test_waiting_times_are_spread(llm: LLM) -> None:
    found = latency(llm, wish(3, 2))
    check_order(found.first_token_seconds)
    check_order(found.per_token_seconds)


def test_no_prompt_is_used_twice(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[tuple[int, ...]] = []
    request = LLM.request

    def noting(self: LLM, ids: tuple[int, ...], *rest: object, **named: object) -> object:
        prompts.append(ids)
        return request(self, ids, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(LLM, "request", noting)
    throughput(llm, wish(3, 3))
    assert len(prompts) == 9  # three to warm up, three alone, three together
    assert len(set(prompts)) == 9
    assert all(len(ids) == 4 and min(ids) > 2 for ids in prompts)


def test_tokens_behind_the_last_first_token_are_decoding() -> None:
    wave = Wave(seconds=9.0, arrivals=((1.0, 2.0, 4.0), (3.0, 5.0, 9.0)))
    assert (wave.prefill_seconds, wave.num_decoded) == (3.0, 3)


def test_all_wrong_numbers_are_named_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        BenchWish(prompt_tokens=0, output_tokens=1, num_requests=0, concurrency=0)
    for name in ("prompt_tokens", "output_tokens", "num_requests", "concurrency"):
        assert name in str(caught.value)
