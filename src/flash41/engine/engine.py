"""The engine: plan, stage, run, commit; with a drafter it proposes first and verifies behind the run.

It speaks token ids and knows no words.  One step computes rows of many requests in one forward; whoever drives it calls
`step` until nothing is unfinished and reads the events.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from flash41.checkpoint.expert_counts import ExpertCounts
from flash41.engine.drafting import Drafting
from flash41.engine.events import NOTHING_VERIFIED, SampledToken, TokenEvent, Verified
from flash41.engine.limits import SchedulerLimits
from flash41.engine.pictures import EncodedPictures
from flash41.engine.plan import StepPlan
from flash41.engine.request import Request
from flash41.engine.runner import Runner
from flash41.engine.sampler import sample_step
from flash41.engine.scheduler import Scheduler
from flash41.engine.stats import EngineStats


class Engine:
    """Requests in, token events out."""

    def __init__(
        self,
        runner: Runner,
        limits: SchedulerLimits,
        drafting: Drafting | None = None,
        pictures: EncodedPictures | None = None,
        experts: Sequence[ExpertCounts] = (),
        threads: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        assert (pictures is None) == (limits.images is None), "limits of pictures and an encoder come together"
        self.scheduler = Scheduler(limits)
        self.runner = runner
        self.drafting = drafting
        self.pictures = pictures
        self._experts = experts
        self._threads = threads

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
        stats = self.scheduler.stats  # asked for in every step of a server
        return replace(stats, experts=tuple(map(replace, self._experts))) if self._experts else stats

    def step(self) -> Sequence[TokenEvent]:
        """Computes one step; returns the tokens it produced.

        Whatever a step raises ends its requests with ABORT, without events; all others go on with the next step.
        """
        with self._threads():
            return self._step()

    def _step(self) -> Sequence[TokenEvent]:
        if self.drafting is not None:
            with self._or_abort(running.request.request_id for running in self.scheduler.undrafted()):
                self.drafting.propose(self.scheduler)
        plan = self.scheduler.plan()
        if plan is None:
            return []
        # Some layers' caches hold the rows of a step that broke off and others do not: none can be resumed.
        with self._or_abort(span.request_id for span in plan.spans):
            tokens, verified = self._compute(plan)
        return self.scheduler.commit(plan, tokens, verified)

    def _compute(self, plan: StepPlan) -> tuple[Mapping[int, SampledToken], Mapping[int, Verified]]:
        requests = self.scheduler.requests(plan)  # before the forward, during which some may be aborted
        shown = None if self.pictures is None else self.pictures.rows_for(plan, self.scheduler.picture)
        staged = self.runner.stage(plan, shown)
        self.runner.foresee(self.scheduler.upcoming(plan))
        logits = self.runner.run(staged).logits
        if self.drafting is None:
            return sample_step(logits, requests), NOTHING_VERIFIED
        rows, undrafted, verified = self.drafting.verify(plan, logits, requests)
        return sample_step(rows, undrafted), verified

    @contextmanager
    def _or_abort(self, request_ids: Iterable[int]) -> Iterator[None]:
        """Ends requests whose computation broke off."""
        concerned = list(request_ids)
        try:
            yield
        except BaseException:
            for request_id in concerned:
                self.scheduler.abort(request_id)
            raise
