"""Decode time per token against context on the embedded default, split into index scoring and the rest.

    python benchmarks/context.py [--quick] [--most N] [--steps N] [--threads N] [--json]

prints a curve:

    context     ms/token  index ms   rest ms
        256       31.20      2.10     29.10  #
      8,192       36.42      7.31     29.11  ####
     65,536       69.87     40.69     29.18  ####################

What a token costs besides scoring does not grow with the context: every layer reads its window and at most `topk`
rows.  Scoring compares the token with every compressed row and grows; the bars show it alone.  One token is computed at
a time, at exactly that context, again and again; the fastest step counts, since whatever disturbs one makes it slower.

Reading 65,536 tokens takes the reference kernels many minutes, and no time here depends on what was read.  So one page
is computed and its bytes are copied to all others; windows are those of that page.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass

import torch
from torch import nn

from flash41.cache.paged import PagedStore
from flash41.cache.placement import Placement
from flash41.checkpoint.default import default_checkpoint
from flash41.config.huggingface import read_config
from flash41.config.run import RunWish
from flash41.engine.load import LoadedModel, load_model
from flash41.engine.plan import PlannedSpan, StepPlan
from flash41.engine.runner import Runner
from flash41.kernels.select import select_kernels
from flash41.model.indexer import Indexer
from flash41.planning.resolve import resolve

SHORTEST, LONGEST, QUICK_LONGEST = 256, 65_536, 4096
FACTOR = 2
STEPS, QUICK_STEPS = 20, 3
BAR_MS = 2.0
"""Milliseconds of one sign of a bar."""


class ScoringClock:
    """Seconds spent in the indexers of a model."""

    def __init__(self, backbone: nn.Module) -> None:
        self.seconds = 0.0
        self._started = 0.0
        for module in backbone.modules():
            if isinstance(module, Indexer):
                module.register_forward_pre_hook(self._begin)
                module.register_forward_hook(self._end)

    def _begin(self, *_: object) -> None:
        self._started = time.perf_counter()

    def _end(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One token at one context."""

    context: int
    total_ms: float
    index_ms: float
    rest_ms: float

    def line(self) -> str:
        bar = "#" * max(1, round(self.index_ms / BAR_MS))
        return f"{self.context:>9,}  {self.total_ms:>9.2f}  {self.index_ms:>9.2f}  {self.rest_ms:>9.2f}  {bar}"


def fill(memory: torch.Tensor, places: Placement) -> None:
    """Copies the bytes of page 0 to all other pages, plane by plane."""
    geometry, layout = places.geometry, places.geometry.index
    regions = [(0, geometry.page_main_bytes)]
    for owner in geometry.owners:
        for start, size in (
            (places.index_value_address(owner.layer_id, 0, 0), owner.rows_per_page * layout.value_bytes),
            (places.index_scale_address(owner.layer_id, 0, 0), owner.rows_per_page * layout.scale_bytes),
        ):
            regions.append((start, size))
    for start, size in regions:
        zone = memory[start : start + size * places.num_pages].view(places.num_pages, size)
        zone[1:] = zone[0]


def prepared(model: LoadedModel, longest: int) -> tuple[Runner, PagedStore]:
    """A runner whose only slot has pages for `longest` tokens, all with rows in them."""
    wish = RunWish(max_model_len=longest, max_num_seqs=1, prefix_cache=False)
    plan = resolve(wish, model.config)
    runner = model.planned_runner(plan)
    store = runner.store
    assert isinstance(store, PagedStore)
    ids = tuple(3 + 7 * position % 400 for position in range(plan.block_size))
    pages = tuple(range(plan.num_pages))
    runner.run(
        runner.stage(
            StepPlan(
                spans=(PlannedSpan(request_id=0, slot=0, start=0, ids=ids, history=(), samples=True, pages=pages),)
            )
        )
    )
    fill(store.pool.memory, store.pool.placement)
    return runner, store


def measure(runner: Runner, store: PagedStore, clock: ScoringClock, context: int, num_steps: int) -> Point:
    """The fastest of `num_steps` tokens at position `context - 1`."""
    pages = tuple(range(store.pool.placement.num_pages))
    span = PlannedSpan(request_id=0, slot=0, start=context - 1, ids=(11,), history=(5, 7, 9), samples=True, pages=pages)
    staged = runner.stage(StepPlan(spans=(span,)))
    points = []
    for _ in range(num_steps):
        store.cursors[0] = context - 1
        clock.seconds, start = 0.0, time.perf_counter()
        runner.run(staged)
        total = time.perf_counter() - start
        points.append((total * 1000, clock.seconds * 1000))
    total_ms, index_ms = min(points)
    return Point(context=context, total_ms=total_ms, index_ms=index_ms, rest_ms=total_ms - index_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode time per token against context on the embedded default.")
    parser.add_argument("--quick", action="store_true", help=f"up to {QUICK_LONGEST:,} tokens, in a few seconds")
    parser.add_argument("--most", type=int, help=f"longest context, at least {SHORTEST}; {LONGEST:,} without --quick")
    parser.add_argument("--steps", type=int, help="tokens at each context, of which the fastest counts")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args()
    longest = arguments.most or (QUICK_LONGEST if arguments.quick else LONGEST)
    if longest < SHORTEST:
        parser.error(f"--most: got {longest}, expected at least {SHORTEST}")
    torch.set_num_threads(arguments.threads)
    directory = default_checkpoint()
    wish, last = RunWish(), read_config(directory).max_positions
    if longest > last:
        parser.error(f"--most: got {longest}, expected at most the model's {last} positions")
    model = load_model(directory, wish.profile, wish.pool, select_kernels("auto"))
    clock = ScoringClock(model.backbone)
    runner, store = prepared(model, longest)
    num_steps = arguments.steps or (QUICK_STEPS if arguments.quick else STEPS)
    contexts = [SHORTEST]
    while contexts[-1] * FACTOR <= longest:
        contexts.append(contexts[-1] * FACTOR)
    if contexts[-1] < longest:
        contexts.append(longest)
    measure(runner, store, clock, SHORTEST, 3)  # decodes the weights
    if not arguments.json:
        print(f"{'context':>9}  {'ms/token':>9}  {'index ms':>9}  {'rest ms':>9}")
    for context in contexts:
        point = measure(runner, store, clock, context, num_steps)
        print(json.dumps(asdict(point)) if arguments.json else point.line(), flush=True)


if __name__ == "__main__":
    main()
