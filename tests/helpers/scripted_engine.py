"""An engine without a model: rows are the texts they depend on, and every read is checked.

A row of a page is the whole text up to its position, a slot's state is the text it has read, an image is a copy of
that.  So a stale page, a state of another text or a span that begins anywhere else than its state fails at once.
"""

import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from flash41.chat.images import Picture
from flash41.config.run import Draft, DraftAccept
from flash41.engine.drafting import Drafting
from flash41.engine.engine import Engine
from flash41.engine.image_shelf import ShelfLimits
from flash41.engine.limits import SchedulerLimits
from flash41.engine.plan import PlannedEncoding, PlannedSpan, StepPlan
from flash41.engine.replay import Replay
from flash41.engine.request import Request, SamplingParams
from flash41.engine.reuse import ReuseLimits
from flash41.engine.schedule import DraftSchedule

EOS, VOCAB = 1, 8
WIDTH = 5
"""Drafts of a block."""
Text = tuple[int, ...]


def next_token(text: Text) -> int:
    """The token that follows a text: EOS after every tenth or so."""
    number = zlib.crc32(bytes(text))
    return EOS if number % 11 == 0 else 2 + number % (VOCAB - 2)


def one_hot(tokens: Sequence[int]) -> torch.Tensor:
    """Logits [n, vocab] that choose these tokens."""
    return torch.nn.functional.one_hot(torch.tensor(tokens, dtype=torch.int64), VOCAB).float()


@dataclass(slots=True)
class ScriptedRunner:
    """Stands in for `engine.runner.Runner`."""

    block_size: int
    replay: Replay
    pages: dict[tuple[int, int], Text] = field(default_factory=dict)
    slots: dict[int, Text] = field(default_factory=dict)
    images: dict[int, Text] = field(default_factory=dict)
    num_rows: int = 0

    def stage(self, plan: StepPlan, _: Any = None) -> StepPlan:
        return plan

    def run(self, plan: StepPlan) -> Any:
        for span in plan.spans:
            if span.start == span.window_start:
                # Behind a cached prefix a slot begins empty; what it reads before is in its pages.
                self.slots[span.slot] = self.pages[self._place(span, span.start - 1)] if span.start else ()
        tails = {span.slot: span.tail_start for span in plan.spans}
        for move in plan.restores:
            assert not self.replay.decoder or move.position <= tails[move.slot], "an image of another tail"
            text = self.images[move.image]
            assert len(text) == move.position, f"image {move.image} holds {len(text)} positions, not {move.position}"
            self.slots[move.slot] = text
        chosen = [token for span in plan.spans for token in self._forward(span)]
        for move in plan.saves:
            assert len(self.slots[move.slot]) == move.position
            self.images[move.image] = self.slots[move.slot]
        return SimpleNamespace(logits=one_hot(chosen))

    def draft(self, anchors: Mapping[int, int], choose: Callable[[int, torch.Tensor], torch.Tensor]) -> Any:
        """Drafts of which the first few are right, how many depends on the text."""
        texts = [(*self.slots[slot], anchor) for slot, anchor in anchors.items()]
        for k in range(WIDTH):
            right = [next_token(text) for text in texts]
            slips = [zlib.crc32(bytes((*text, k))) % 3 == 0 for text in texts]
            wanted = [
                2 + (token + slip) % (VOCAB - 2) if slip else token for token, slip in zip(right, slips, strict=True)
            ]
            drafts = choose(k, one_hot(wanted)).tolist()
            texts = [(*text, draft) for text, draft in zip(texts, drafts, strict=True)]
        return SimpleNamespace(confidence=torch.zeros(len(texts), WIDTH))

    def keep(self, slot: int, position: int) -> None:
        assert len(self.slots[slot]) - WIDTH <= position <= len(self.slots[slot])
        self.slots[slot] = self.slots[slot][:position]

    def _forward(self, span: PlannedSpan) -> list[int]:
        text = self.slots[span.slot]
        assert len(text) == span.start, f"slot {span.slot} holds {len(text)} positions, the span begins at {span.start}"
        assert span.history == text[max(0, span.start - 2) :]
        assert span.planes_end in (0, span.window_start + self.replay.window)
        for position in range(max(span.start, min(span.end, span.planes_end))):
            # A page that lost or kept a rejected draft would show here.
            assert self.pages[self._place(span, position)] == (text + span.ids)[: position + 1], "a row of another text"
        text += span.ids
        for position in range(max(span.start, span.planes_end), span.end):
            self.pages[self._place(span, position)] = text[: position + 1]
        self.slots[span.slot] = text
        self.num_rows += len(span.ids)
        return [next_token(text[: span.end - k]) for k in range(span.num_choices - 1, -1, -1)]

    def _place(self, span: PlannedSpan, position: int) -> tuple[int, int]:
        return span.pages[position // self.block_size], position % self.block_size


@dataclass(slots=True)
class ScriptedPictures:
    """Stands in for `engine.pictures.EncodedPictures`: names in the place of rows, and every span finds its own."""

    names: set[bytes] = field(default_factory=set)

    def rows_for(self, plan: StepPlan, picture_of: Callable[[PlannedEncoding], Picture]) -> set[bytes]:
        self.names -= set(plan.forgets)
        for encoding in plan.encodings:
            assert picture_of(encoding).identity == encoding.identity
            self.names.add(encoding.identity)
        for span in plan.spans:
            reached = {one.identity for one in span.images if one.start < span.end and one.end > span.start}
            assert reached <= self.names, "a span reaches a picture that is not there"
        return self.names


def scripted_engine(
    *,
    num_pages: int,
    num_images: int = 3,
    block_size: int = 3,
    slots: int = 3,
    rows: int = 16,
    longest: int = 24,
    interval: int = 2,
    decoder: bool = False,
    prefix: bool = False,
    draft: Draft = Draft.OFF,
    pictures: ShelfLimits | None = None,
) -> Engine:
    """An engine over `num_pages` pages; `interval` counts pages.  Without images nothing is reused.

    With `pictures` it takes some, which nobody encodes: only who needs which, and when, is looked at.
    """
    replay = Replay(window=2, decoder=decoder, prefix=prefix)
    num_images = 0 if prefix else num_images
    reuse = ReuseLimits(layout_id="scripted", num_images=num_images, image_interval=interval * block_size)
    limits = SchedulerLimits(
        max_num_seqs=slots,
        max_num_batched_tokens=rows,
        max_model_len=longest,
        look_back=2,
        block_size=block_size,
        num_pages=num_pages,
        reuse=reuse if num_images or prefix else None,
        replay=replay,
        images=pictures,
    )
    runner: Any = ScriptedRunner(block_size, replay)
    if draft is Draft.OFF:
        shelf: Any = None if pictures is None else ScriptedPictures()
        return Engine(runner, limits, pictures=shelf)
    ticks = itertools.count()
    schedule = DraftSchedule(WIDTH, clock=lambda: float(next(ticks))) if draft is Draft.ADAPTIVE else None
    return Engine(runner, limits, Drafting(runner, WIDTH, DraftAccept.SHARED_NOISE, schedule))


def scripted_request(number: int, ids: Sequence[int], max_tokens: int, salt: bytes = b"") -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    return Request(request_id=number, prompt_ids=tuple(ids), params=params, seed=0, eos_token_id=EOS, cache_salt=salt)


def expected_answer(ids: Sequence[int], max_tokens: int, longest: int) -> list[int]:
    """What a request is answered, whatever else there is."""
    text: Text = tuple(ids)
    answer: list[int] = []
    while len(answer) < max_tokens and len(text) < longest and EOS not in answer:
        answer.append(next_token(text))
        text += (answer[-1],)
    return answer


def assert_all_given_back(tested: Engine) -> None:
    """Nothing runs; all pages, slots and images are free once the cache has been emptied."""
    scheduler = tested.scheduler
    assert tested.num_unfinished == 0
    scheduler.check_integrity()
    cache = scheduler.reuse.cache
    if cache is not None:
        assert cache.make_room(scheduler._pages.num_pages)
        assert cache.images.num_free == cache.images.num_slots
        assert not cache._ahead
    assert scheduler._pages.num_free == scheduler._pages.num_pages
    assert sorted(scheduler._free_slots) == list(range(scheduler.limits.max_num_seqs))
    assert not scheduler.reuse._holds
