"""What a step costs against its rows on the embedded default, and what drafts bring at a given acceptance.

    python benchmarks/draft.py [--quick] [--steps N] [--tokens N] [--threads N] [--json]

prints a curve and a table:

    rows    ms/step   of 1 row
       1       7.60       1.00
       6       9.10       1.20      one request, its anchor and five drafts
      12      10.20       1.34      two requests

    drafts     tokens/step   over off
    forced 3          3.92       2.03

The curve is measured step by step after a prompt, the drafts of each taken back before the next; the fastest counts,
since whatever disturbs one makes it slower.  The table is of one request: drafts are replaced by that many right tokens
and a wrong one, and everything is counted, proposing included; without drafts it is answered again behind every line,
and a line is compared with the two beside it.  Seconds are of this machine.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass

import torch

from flash41.checkpoint.default import default_checkpoint
from flash41.config.run import Profile
from flash41.engine.load import LoadedModel, load_model
from flash41.engine.plan import PlannedSpan, StepPlan
from flash41.kernels.select import select_kernels
from flash41.tools.draft_check import DraftCheckWish, DraftRun, check_drafts

CONTEXT = 48
CURVE = ((1, 1), (1, 2), (1, 4), (1, 6), (2, 6), (4, 6))
"""(requests, rows of each)."""
STEPS, QUICK_STEPS = 20, 2
TOKENS, QUICK_TOKENS = 48, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of the curve."""

    num_requests: int
    rows: int
    """Of all requests together."""
    seconds: float
    """Of the fastest step."""


def curve(model: LoadedModel, steps: int) -> list[Point]:
    """Seconds of steps of several sizes behind a prompt."""
    num_slots = max(num_requests for num_requests, _ in CURVE)
    longest = CONTEXT + (steps + 1) * len(CURVE) + max(rows for _, rows in CURVE)
    runner = model.runner(num_slots, longest, drafts=True)
    prompt = tuple(range(3, 3 + CONTEXT))
    found = []
    for slot in range(num_slots):
        runner.run(runner.stage(plan_of([slot], 0, prompt, 0)))
    for number, (num_requests, rows) in enumerate(CURVE):
        slots, seconds = [*range(num_requests)], []
        for step in range(steps + 1):  # the first one reads and decodes weights
            position = CONTEXT + number * (steps + 1) + step
            plan = plan_of(slots, position, prompt[:rows], rows - 1, prompt[-2:])
            start = time.perf_counter()
            runner.run(runner.stage(plan))
            seconds.append(time.perf_counter() - start)
            for slot in slots:
                runner.keep(slot, position + 1)  # the anchor stays, the drafts do not
        for slot in range(num_requests, num_slots):  # the others keep up
            ids = (prompt * (steps // CONTEXT + 2))[: steps + 1]
            runner.run(runner.stage(plan_of([slot], CONTEXT + number * (steps + 1), ids, 0, prompt[-2:])))
        found.append(Point(num_requests=num_requests, rows=num_requests * rows, seconds=min(seconds[1:])))
    return found


def plan_of(
    slots: list[int], start: int, ids: tuple[int, ...], num_drafts: int, history: tuple[int, ...] = ()
) -> StepPlan:
    """The same rows for every slot."""
    return StepPlan(
        spans=tuple(
            PlannedSpan(
                request_id=slot, slot=slot, start=start, ids=ids, history=history, samples=True, num_drafts=num_drafts
            )
            for slot in slots
        )
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps and tokens")
    parser.add_argument("--steps", type=int, help="steps per point of the curve")
    parser.add_argument("--tokens", type=int, help="tokens of an answer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    directory, profile = default_checkpoint(), Profile.VENDOR
    model = load_model(directory, profile, profile.default_pool, select_kernels("auto"), drafts=True)
    points = curve(model, arguments.steps or (QUICK_STEPS if arguments.quick else STEPS))
    tokens = arguments.tokens or (QUICK_TOKENS if arguments.quick else TOKENS)
    wish = DraftCheckWish(
        model=directory,
        prompts=("Anna is in the barn. Anna goes to the",),
        temperatures=(1.0,),
        max_tokens=tokens,
        ignore_eos=True,
        threads=arguments.threads,
    )
    runs = check_drafts(wish)
    if arguments.json:
        print(json.dumps({"curve": [asdict(point) for point in points], "runs": [asdict(run) for run in runs]}))
        return
    show(points, runs)


def show(points: list[Point], runs: list[DraftRun]) -> None:
    """Prints the curve and the table."""
    print(f"{'rows':>8}{'ms/step':>11}{'of 1 row':>11}")
    for point in points:
        relative = point.seconds / points[0].seconds
        print(f"{point.rows:>8}{point.seconds * 1000:>11.2f}{relative:>11.2f}")
    print(f"\n{'drafts':<10}{'tokens/step':>12}{'over off':>11}")
    for run in runs:
        per_step = "" if run.tokens_per_step is None else f"{run.tokens_per_step:.2f}"
        print(f"{run.name:<10}{per_step:>12}{run.ratio:>11.2f}")


if __name__ == "__main__":
    main()
