"""Engines over small pools, requests for them, and what each request is answered alone.

Pools and images begin full of NaN, so that a row read before it was written would show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flash41.cache.geometry import pool_geometry
from flash41.cache.geometry_rules import smallest_block_size
from flash41.cache.paged import PagedStore
from flash41.cache.placement import placement
from flash41.config.run import Draft, DraftAccept, Profile, RunWish
from flash41.engine.engine import Engine
from flash41.engine.events import SampledToken
from flash41.engine.limits import SchedulerLimits
from flash41.engine.load import LoadedModel
from flash41.engine.request import Request, SamplingParams
from flash41.planning.resolve import RunPlan, resolve

LONGEST, NUM_TOKENS, EOS = 12, 7, 1
LENGTHS = (3, 5, 2, 1, 4)
POISON = 0xFF
"""As BF16, FP32, E4M3 or E8M0: NaN."""
PARAMS = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3)

Tokens = list[SampledToken]
"""Tokens of an answer with logarithmic probabilities, into which every bit of the logits enters."""


def prompt(number: int, length: int) -> tuple[int, ...]:
    return (0, *np.random.default_rng(number).integers(3, 504, length - 1).tolist())


def request(number: int, length: int | None = None, params: SamplingParams = PARAMS) -> Request:
    return asking(number, prompt(number, length or LENGTHS[number]), params)


def asking(number: int, ids: Sequence[int], params: SamplingParams = PARAMS, **values: Any) -> Request:
    """A request for these ids, with a seed of its own number unless another is given."""
    values = {"seed": 1000 + number, **values}
    return Request(request_id=number, prompt_ids=tuple(ids), params=params, eos_token_id=EOS, **values)


def page_size(model: LoadedModel, factor: int = 1) -> int:
    attention = model.config.attention
    ratios = [attention.compress_ratios[owner] for owner in attention.kv_source_layer_ids]
    return factor * smallest_block_size(model.config.indexer.candidate_block_size, ratios)


def paged_plan(
    model: LoadedModel,
    *,
    spare: int = 0,
    slots: int = 4,
    rows: int = 32,
    factor: int = 1,
    longest: int = LONGEST,
    num_images: int = 0,
    interval: int | None = None,
    draft: Draft = Draft.OFF,
    rule: DraftAccept = DraftAccept.SHARED_NOISE,
) -> RunPlan:
    """A plan whose pool holds one request of full length and `spare` pages more, and that keeps `num_images` images.

    `interval` counts pages.
    """
    block_size = page_size(model, factor)
    draft_tokens = 0 if draft is Draft.OFF else model.config.dspark.block_size
    geometry = pool_geometry(model.config, model.pool, block_size=block_size, draft_tokens=draft_tokens)
    num_pages = geometry.pages_for(longest) + spare
    plan = resolve(
        RunWish(
            profile=model.profile,
            kv_cache_dtype=model.pool.main,
            index_cache_dtype=model.pool.index,
            block_size=block_size,
            max_model_len=longest,
            max_num_seqs=slots,
            max_num_batched_tokens=rows,
            memory_bytes=placement(geometry, num_pages, slots).total_bytes,
            prefix_cache=False,
            draft=draft,
            draft_accept=None if draft is Draft.OFF else rule,
        ),
        model.config,
    )
    assert plan.num_pages == min(num_pages, slots * geometry.pages_for(longest))
    distance = block_size * (interval or 1000)
    return replace(plan, num_images=num_images, prefix_cache=num_images > 0, image_interval=distance)


def paged_engine(model: LoadedModel, **values: Any) -> Engine:
    """An engine with the plan of `paged_plan`."""
    plan = paged_plan(model, **values)
    tested = model.engine(plan)
    runner = tested.runner
    assert isinstance(runner.store, PagedStore)
    runner.store.pool.memory.fill_(POISON)
    if runner.images is not None:
        runner.images.memory.fill_(POISON)
    return tested


def limits(model: LoadedModel, slots: int, rows: int, longest: int, **pages: int) -> SchedulerLimits:
    return SchedulerLimits(
        max_num_seqs=slots,
        max_num_batched_tokens=rows,
        max_model_len=longest,
        look_back=model.config.engram.max_ngram - 1,
        **pages,
    )


def step(tested: Engine, seen: dict[int, Tokens]) -> None:
    for event in tested.step():
        if event.token is not None:
            seen.setdefault(event.request_id, []).append(event.token)
    tested.scheduler.check_integrity()


def run(tested: Engine, asked: Sequence[Request]) -> dict[int, Tokens]:
    """Tokens of every request until nothing is unfinished."""
    seen: dict[int, Tokens] = {}
    for one in asked:
        tested.add(one)
    while tested.num_unfinished:
        step(tested, seen)
    return seen


def assert_as_at_start(tested: Engine) -> None:
    """Every page is free, once the cache has given back what it alone holds; no slot and no image is in use."""
    scheduler = tested.scheduler
    scheduler.check_integrity()
    cache = scheduler.reuse.cache
    if cache is not None:
        assert cache.make_room(scheduler._pages.num_pages)
        assert cache.images.num_free == cache.images.num_slots
    assert scheduler._pages.num_free == scheduler._pages.num_pages
    assert sorted(scheduler._free_slots) == list(range(scheduler.limits.max_num_seqs))
    assert (scheduler._running, list(scheduler._waiting)) == ([], [])


class Alone:
    """What each request is answered in an engine of its own with contiguous caches, computed once."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._kept: dict[tuple[Any, ...], Tokens] = {}

    def __call__(self, model: LoadedModel, asked: Request) -> Tokens:
        # The formats of pools are storage, except that of index keys in profile atom.
        index = model.pool.index if model.profile is Profile.ATOM else None
        asked_for = (asked.prompt_ids, asked.seed, asked.params.max_tokens)
        key = (model.kernels.name, model.directory, model.profile, index, *asked_for)
        if key not in self._kept:
            engine = Engine(model.runner(1, self._longest), limits(model, 1, 64, self._longest))
            copy = Request(
                request_id=0, prompt_ids=asked.prompt_ids, params=asked.params, seed=asked.seed, eos_token_id=EOS
            )
            self._kept[key] = run(engine, [copy])[0]
        return self._kept[key]

    def all(self, model: LoadedModel, asked: Sequence[Request]) -> Mapping[int, Tokens]:
        return {one.request_id: self(model, one) for one in asked}
