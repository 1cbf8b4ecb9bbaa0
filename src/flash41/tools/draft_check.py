"""Proof on a checkpoint that drafts change speed and nothing else, and what they bring.

    off            no draft stages are loaded: the answers to compare with
    on             drafts of the checkpoint
    forced n       drafts replaced by n tokens of the right answer and a wrong one, so that n are accepted, n = 0 .. g

Every prompt is answered at temperature 0 and with a seed.  Tokens and logarithmic probabilities must be equal, the
latter to the bit.  All runs do the same work without reusing prefixes.  `off` is answered again behind every other run,
whose speed is compared with that of the two beside it: a machine is not equally busy for minutes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flash41.engine.drafting import Forced
from flash41.engine.events import SampledToken
from flash41.engine.llm import LLM
from flash41.engine.request import Request, SamplingParams
from flash41.errors import RequestError, complaint

SEED = 41
PROMPTS = ("Once upon a time there was a", "for i in range(10):\n    print(")
"""Asked where no file gives others."""
TEMPERATURES = (0.0, 1.0)

Progress = Callable[[str], None]
"""Called with the name of the run that begins."""
Tokens = tuple[SampledToken, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCheckWish:
    """What to run; options as on the command line."""

    model: Path | None = None
    prompts: Sequence[str] = PROMPTS
    temperatures: Sequence[float] = TEMPERATURES
    """At which every prompt is answered, above 0 with a seed."""
    max_tokens: int = 24
    """Tokens of an answer."""
    ignore_eos: bool = False
    """Whether answers go on behind their end, so that all are of that length."""
    profile: str = "vendor"
    kv_cache_dtype: str | None = None
    index_cache_dtype: str | None = None
    max_num_batched_tokens: int = 512
    backend: str = "auto"
    threads: int | None = None

    @property
    def num_requests(self) -> int:
        """Answers of each run."""
        return len(self.temperatures) * len(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first token that another run chose."""

    prompt: int
    """Number of the prompt, from 0."""
    temperature: float
    """At which of the two it was answered."""
    index: int
    """Place in the answer, from 0."""
    expected: SampledToken | None
    """Without drafts; None behind its end."""
    got: SampledToken | None
    """With them; None behind its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRun:
    """One way to answer all prompts."""

    name: str
    """off, on, or forced n."""
    tokens_per_second: float
    """All tokens over all time, prompts included."""
    ratio: float
    """Speed over that of `off` right before and right behind it."""
    tokens_per_step: float | None
    """Tokens that an answer gained per verification; None where there was none."""
    acceptance: tuple[float, ...]
    """By position behind the anchor: accepted drafts over those verified."""
    difference: Difference | None
    """None where all answers are those of `off`."""


def read_prompts(path: Path) -> tuple[str, ...]:
    """Prompts of a text file, one a line; blank lines are none.  Raises RequestError where it has none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(complaint("prompts", str(path), "a readable text file", str(error))) from error
    prompts = tuple(line for line in lines if line.strip())
    if not prompts:
        raise RequestError(complaint(f"prompts of {path}", 0, "at least one line with text"))
    return prompts


def check_drafts(wish: DraftCheckWish, progress: Progress | None = None) -> list[DraftRun]:
    """All runs, `off` first.  Raises ConfigError for a checkpoint without draft stages, before weights are read."""
    drafting = _open(wish, "on")
    plain = _open(wish, "off")
    say = progress or (lambda _: None)
    say("off")
    _answers(plain, wish, 2)  # reads the files and decodes the weights
    right, seconds = _answers(plain, wish, wish.max_tokens)
    speed = _num_tokens(right) / seconds
    runs = [
        DraftRun(name="off", tokens_per_second=speed, ratio=1.0, tokens_per_step=None, acceptance=(), difference=None)
    ]
    _answers(drafting, wish, 2)
    forced: list[tuple[str, int | None]] = [("on", None)]
    forced += [(f"forced {count}", count) for count in range(drafting.plan.draft_tokens + 1)]
    for name, count in forced:
        say(name)
        run, seconds = _drafted(drafting, plain, wish, right, _Asked(name=name, count=count, before=seconds))
        runs.append(run)
    return runs


def _open(wish: DraftCheckWish, draft: str) -> LLM:
    return LLM(
        wish.model,
        profile=wish.profile,
        kv_cache_dtype=wish.kv_cache_dtype,
        index_cache_dtype=wish.index_cache_dtype,
        max_num_seqs=wish.num_requests,
        max_num_batched_tokens=wish.max_num_batched_tokens,
        prefix_cache=False,
        draft=draft,
        backend=wish.backend,
        threads=wish.threads,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A run to make."""

    name: str
    count: int | None
    """Drafts to be right of each block; None leaves drafts as they are."""
    before: float
    """Seconds that the run without drafts took right before."""


def _drafted(
    llm: LLM, plain: LLM, wish: DraftCheckWish, right: Sequence[Tokens], asked: _Asked
) -> tuple[DraftRun, float]:
    """A run with drafts, and the seconds of the one without right behind it."""
    before = llm.engine.stats
    found, seconds = _answers(llm, wish, wish.max_tokens, right, asked.count)
    after = llm.engine.stats
    _, behind = _answers(plain, wish, wish.max_tokens)
    speed = _num_tokens(found) / seconds
    num_blocks = after.num_draft_blocks - before.num_draft_blocks
    num_tokens = after.num_block_tokens - before.num_block_tokens
    drafted = _risen(before.drafted_tokens, after.drafted_tokens)
    accepted = _risen(before.accepted_tokens, after.accepted_tokens)
    run = DraftRun(
        name=asked.name,
        tokens_per_second=speed,
        ratio=speed / (2 * _num_tokens(right) / (asked.before + behind)),
        tokens_per_step=num_tokens / num_blocks if num_blocks else None,
        acceptance=tuple(good / tried for good, tried in zip(accepted, drafted, strict=True) if tried),
        difference=_first_difference(wish, right, found),
    )
    return run, behind


def _answers(
    llm: LLM, wish: DraftCheckWish, max_tokens: int, right: Sequence[Tokens] = (), count: int | None = None
) -> tuple[list[Tokens], float]:
    """Answers to all prompts at both temperatures, and the seconds they took; `count` forces that many drafts."""
    requests = []
    for prompt in wish.prompts:
        for temperature in wish.temperatures:
            params = SamplingParams(
                max_tokens=max_tokens, temperature=temperature, seed=SEED, logprobs=1, ignore_eos=wish.ignore_eos
            )
            requests.append(llm.request(llm.encode(prompt), params))
    numbers = {request.request_id: number for number, request in enumerate(requests)}
    if llm.engine.drafting is not None:
        llm.engine.drafting.forced = None if count is None else _forcing(right, numbers, count, llm.config.vocab_size)
    start = time.perf_counter()
    answers = {answer.request.request_id: tuple(answer.tokens) for answer in llm.as_finished(requests)}
    seconds = time.perf_counter() - start
    return [answers[request.request_id] for request in requests], seconds


def _forcing(right: Sequence[Tokens], numbers: Mapping[int, int], count: int, vocab_size: int) -> Forced:
    def forced(request: Request, drafts: Sequence[int]) -> Sequence[int]:
        answer = [token.token_id for token in right[numbers[request.request_id]]][len(request.output_ids) :]
        wrong = [(token + 1) % vocab_size for token in answer[count : count + 1]]
        return [*answer[:count], *wrong][: len(drafts)]

    return forced


def _first_difference(wish: DraftCheckWish, right: Sequence[Tokens], found: Sequence[Tokens]) -> Difference | None:
    for number, (expected, got) in enumerate(zip(right, found, strict=True)):
        for index in range(max(len(expected), len(got))):
            one = expected[index] if index < len(expected) else None
            other = got[index] if index < len(got) else None
            if one != other:
                prompt, place = divmod(number, len(wish.temperatures))
                temperature = wish.temperatures[place]
                return Difference(prompt=prompt, temperature=temperature, index=index, expected=one, got=other)
    return None


def _num_tokens(answers: Sequence[Tokens]) -> int:
    return sum(map(len, answers))


def _risen(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [count - (before[k] if k < len(before) else 0) for k, count in enumerate(after)]
