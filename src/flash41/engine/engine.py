"""The engine: plan, stage, run, commit.

It speaks token ids and knows no words.  One step computes rows of many requests in one forward; whoever drives it calls
`step` until nothing is unfinished and reads the events.
"""

from collections.abc import Sequence

from flash41.engine.request import Request
from flash41.engine.runner import Runner
from flash41.engine.sampler import sample_step
from flash41.engine.scheduler import Scheduler, SchedulerLimits, TokenEvent


class Engine:
    """Requests in, token events out."""

    def __init__(self, runner: Runner, limits: SchedulerLimits) -> None:
        self.scheduler = Scheduler(limits)
        self.runner = runner

    def add(self, request: Request) -> None:
        """Queues a request; raises RequestError if it can never run."""
        self.scheduler.add(request)

    def abort(self, request_id: int) -> Sequence[TokenEvent]:
        """Ends a request at once."""
        return self.scheduler.abort(request_id)

    @property
    def num_unfinished(self) -> int:
        """Requests that still owe tokens."""
        return self.scheduler.num_unfinished

    def step(self) -> Sequence[TokenEvent]:
        """Computes one step; returns the tokens it produced."""
        plan = self.scheduler.plan()
        if plan is None:
            return []
        staged = self.runner.stage(plan)
        output = self.runner.run(staged)
        tokens = sample_step(output.logits, self.scheduler.requests(plan))
        return self.scheduler.commit(plan, tokens)
