"""The engine: plan, stage, run, commit.

It speaks token ids and knows no words.  One step computes rows of many requests in one forward; whoever drives it calls
`step` until nothing is unfinished and reads the events.
"""

from collections.abc import Mapping, Sequence

from flash41.engine.plan import StepPlan
from flash41.engine.request import Request
from flash41.engine.runner import Runner
from flash41.engine.sampler import sample_step
from flash41.engine.scheduler import SampledToken, Scheduler, SchedulerLimits, TokenEvent
from flash41.engine.stats import EngineStats


class Engine:
    """Requests in, token events out."""

    def __init__(self, runner: Runner, limits: SchedulerLimits) -> None:
        self.scheduler = Scheduler(limits)
        self.runner = runner

    def add(self, request: Request) -> None:
        """Queues a request; raises RequestError if it can never run."""
        self.scheduler.add(request)

    def check(self, request: Request) -> None:
        """Raises RequestError if a request can never run."""
        self.scheduler.check(request)

    def abort(self, request_id: int) -> Sequence[TokenEvent]:
        """Ends a request at once."""
        return self.scheduler.abort(request_id)

    @property
    def num_unfinished(self) -> int:
        """Requests that still owe tokens."""
        return self.scheduler.num_unfinished

    @property
    def stats(self) -> EngineStats:
        """What it holds and has done."""
        return self.scheduler.stats

    def step(self) -> Sequence[TokenEvent]:
        """Computes one step; returns the tokens it produced.

        Whatever a step raises ends its requests with ABORT, without events; all others go on with the next step.
        """
        plan = self.scheduler.plan()
        if plan is None:
            return []
        try:
            tokens = self._compute(plan)
        except BaseException:
            # Some layers' caches hold the rows of a step that broke off and others do not: none can be resumed.
            for span in plan.spans:
                self.scheduler.abort(span.request_id)
            raise
        return self.scheduler.commit(plan, tokens)

    def _compute(self, plan: StepPlan) -> Mapping[int, SampledToken]:
        requests = self.scheduler.requests(plan)  # before the forward, during which some may be aborted
        output = self.runner.run(self.runner.stage(plan))
        return sample_step(output.logits, requests)
