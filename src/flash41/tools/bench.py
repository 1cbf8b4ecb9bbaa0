"""Measured speeds of a model on the machine at hand.

Prompts are random ids from a fixed seed, no two alike, and answers go on past EOS, so that every request does the same
work and no request can use another's.  Everything is warmed up first.  `throughput` measures one request at a time and
`concurrency` at once in turns within one run, so that a busy machine slows both alike and their ratio means something.
Seconds are wall-clock seconds of this machine and say nothing about any other.
"""

import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.errors import RequestError, combined, complaint

FIRST_ID = 3
"""Below lie BOS, EOS and padding in every vocabulary of this model."""
SEED = 41

Progress = Callable[[int, int], None]
"""Called with (requests done, requests in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchWish:
    """What to measure.  Raises RequestError listing every number out of range."""

    prompt_tokens: int
    output_tokens: int
    """At least 2: the first belongs to the prompt's time, the others to decoding."""
    num_requests: int
    concurrency: int

    def __post_init__(self) -> None:
        least = {"prompt_tokens": 1, "output_tokens": 2, "num_requests": 1, "concurrency": 1}
        faults = [
            complaint(name, getattr(self, name), f"an integer of at least {low}")
            for name, low in least.items()
            if getattr(self, name) < low
        ]
        if faults:
            raise RequestError(combined(faults))

    @property
    def num_positions(self) -> int:
        """Longest request."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Requests that were queued together, and when their tokens came."""

    seconds: float
    """Until the last token."""
    arrivals: tuple[tuple[float, ...], ...]
    """Per request, seconds of each token from the moment the wave was queued."""

    @property
    def prefill_seconds(self) -> float:
        """Until every request had its first token."""
        return max(times[0] for times in self.arrivals)

    @property
    def num_decoded(self) -> int:
        """Tokens that came when all prompts had been read."""
        return sum(moment > self.prefill_seconds for times in self.arrivals for moment in times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens per second at one concurrency."""

    concurrency: int
    prefill_tokens_per_second: float
    """Prompt tokens over the time until all requests queued together had their first token."""
    decode_tokens_per_second: float
    """Tokens behind that moment over the time they took."""
    output_tokens_per_second: float
    """All tokens of answers over all time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Seconds of many events."""

    minimum: float
    median: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Waiting times at one concurrency."""

    first_token_seconds: Spread
    per_token_seconds: Spread
    """Between one token of an answer and its next."""


@dataclass(slots=True)
class _Clock:
    """A stop watcher that never stops: it notes when tokens come."""

    moments: list[float] = field(default_factory=list)

    def push(self, token_id: int) -> bool:  # noqa: ARG002 -- every token counts alike
        self.moments.append(time.perf_counter())
        return False


def throughput(llm: LLM, wish: BenchWish, progress: Progress | None = None) -> list[Speed]:
    """Speed of one request at a time and of `concurrency` at once, over `num_requests` each.

    One entry only when the concurrency is 1.  The engine must hold `concurrency` requests.
    """
    bench = _Bench(llm, wish, progress, 2 * wish.num_requests if wish.concurrency > 1 else wish.num_requests)
    waves: dict[int, list[Wave]] = {1: [], wish.concurrency: []}
    for size in _wave_sizes(wish):
        if wish.concurrency > 1:
            waves[1] += [bench.wave(1) for _ in range(size)]
        waves[wish.concurrency].append(bench.wave(size))
    return [_speed(concurrency, found, wish.prompt_tokens) for concurrency, found in waves.items()]


def latency(llm: LLM, wish: BenchWish, progress: Progress | None = None) -> Latency:
    """Waiting times of `num_requests` requests, `concurrency` queued together."""
    bench = _Bench(llm, wish, progress, wish.num_requests)
    arrivals = [times for size in _wave_sizes(wish) for times in bench.wave(size).arrivals]
    gaps = [later - earlier for times in arrivals for earlier, later in itertools.pairwise(times)]
    return Latency(first_token_seconds=_spread([times[0] for times in arrivals]), per_token_seconds=_spread(gaps))


class _Bench:
    """A warm engine, and prompts that were never used before."""

    def __init__(self, llm: LLM, wish: BenchWish, progress: Progress | None, num_requests: int) -> None:
        assert llm.plan.max_num_seqs >= wish.concurrency, (llm.plan.max_num_seqs, wish.concurrency)
        self._llm = llm
        self._wish = wish
        self._dice = random.Random(SEED)
        self._num_done, self._num_requests = 0, num_requests
        self._progress: Progress | None = None
        self.wave(wish.concurrency)  # reads the files and decodes the weights
        self._num_done, self._progress = 0, progress

    def wave(self, size: int) -> Wave:
        """Queues that many requests together and waits for all."""
        params = SamplingParams(max_tokens=self._wish.output_tokens, seed=SEED, ignore_eos=True)
        clocks = [_Clock() for _ in range(size)]
        requests = [self._llm.request(self._prompt(), params, watcher=clock) for clock in clocks]
        start = time.perf_counter()
        for _ in self._llm.as_finished(requests):
            self._num_done += 1
            if self._progress is not None:
                self._progress(self._num_done, self._num_requests)
        seconds = time.perf_counter() - start
        return Wave(
            seconds=seconds, arrivals=tuple(tuple(moment - start for moment in clock.moments) for clock in clocks)
        )

    def _prompt(self) -> tuple[int, ...]:
        size = self._llm.config.vocab_size
        return tuple(self._dice.randrange(FIRST_ID, size) for _ in range(self._wish.prompt_tokens))


def _wave_sizes(wish: BenchWish) -> list[int]:
    """`num_requests` in parts of `concurrency`; the last one may be smaller."""
    full, rest = divmod(wish.num_requests, wish.concurrency)
    return [wish.concurrency] * full + ([rest] if rest else [])


def _speed(concurrency: int, waves: Sequence[Wave], prompt_tokens: int) -> Speed:
    num_requests = sum(len(wave.arrivals) for wave in waves)
    prefill = sum(wave.prefill_seconds for wave in waves)
    seconds = sum(wave.seconds for wave in waves)
    return Speed(
        concurrency=concurrency,
        prefill_tokens_per_second=num_requests * prompt_tokens / prefill,
        decode_tokens_per_second=sum(wave.num_decoded for wave in waves) / (seconds - prefill),
        output_tokens_per_second=sum(len(times) for wave in waves for times in wave.arrivals) / seconds,
    )


def _spread(seconds: Sequence[float]) -> Spread:
    return Spread(minimum=min(seconds), median=statistics.median(seconds), maximum=max(seconds))
