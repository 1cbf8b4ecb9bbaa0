"""What an engine with a drafter does besides: it asks for drafts before a step, and judges them behind it.

    propose    answers that await their newest token -> Runner.draft -> drafts for the scheduler to plan with
    verify     logits of the anchor and of every draft -> tokens, chosen one by one as without drafts

Each target row is processed with the tokens before it: penalties, bias, constraint and noise follow the block token by
token, and nothing is asked behind a token that ends the answer or differs from its draft.  Drafts are drawn from the
draft logits in the same way, with the same noise, so that they are as often right as they can be; the constraint
advances with real tokens only and so restricts the first of them alone.  spec: dspark.md sections 5 to 8.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flash41.config.run import DraftAccept
from flash41.engine.events import SampledToken, Verified
from flash41.engine.noise import acceptance_uniforms
from flash41.engine.plan import StepPlan
from flash41.engine.request import Request
from flash41.engine.runner import Runner
from flash41.engine.sampler import check_numbers, noisy_token, processed, reported, sample, tempered
from flash41.engine.schedule import DraftSchedule
from flash41.engine.scheduler import Scheduler
from flash41.engine.speculative import Verdict, equality, rejection

Forced = Callable[[Request, Sequence[int]], Sequence[int]]
"""(request, its drafts) -> what is verified in their place, no more of them."""


@dataclass(slots=True)
class _Proposal:
    """The drafts of one request in the making."""

    request: Request
    keeps_rows: bool
    tokens: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    """FP64 probabilities [vocab] that each was drawn with, where they are kept."""
    confidence: list[float] = field(default_factory=list)
    """Probability that each is accepted if those before it are."""

    def draw(self, k: int, logits: Tensor) -> int:
        """The k-th draft from FP32 logits [vocab]."""
        self.tokens.append(self._token(k, logits))
        return self.tokens[-1]

    def _token(self, k: int, logits: Tensor) -> int:
        scores = processed(logits, self.request, self.tokens, constrained=k == 0)
        if self.request.params.temperature == 0 or scores.max() == -torch.inf:
            return int(scores.argmax())
        kept = tempered(scores, self.request, k)
        if self.keeps_rows:
            self.rows.append(kept.softmax(0))
        return noisy_token(kept, self.request, k)


class Drafting:
    """Drafts of one engine."""

    def __init__(self, runner: Runner, width: int, rule: DraftAccept, schedule: DraftSchedule | None = None) -> None:
        self._runner = runner
        self._width = width
        self._rule = rule
        self._schedule = schedule
        self._proposals: dict[int, _Proposal] = {}
        self.forced: Forced | None = None
        """Puts other tokens in the place of drafts, for proofs and measurements; None where drafts stay as they are."""

    def propose(self, scheduler: Scheduler) -> None:
        """Asks for the drafts of all answers that await their newest token and could take more than one."""
        if self._schedule is not None:
            self._schedule.begin()
            if not self._schedule.is_drafting:
                return
        found = scheduler.undrafted()
        if not found:
            return
        proposals = [_Proposal(one.request, self._rejects(one.request)) for one in found]

        def choose(k: int, logits: Tensor) -> Tensor:
            return torch.tensor([one.draw(k, row) for one, row in zip(proposals, logits.unbind(), strict=True)])

        anchors = {one.slot: one.ids(one.num_computed, one.num_known)[0] for one in found}
        confidence = self._runner.draft(anchors, choose).confidence.double().sigmoid().tolist()
        lengths = [self._width] * len(found)
        if self._schedule is not None:
            lengths = self._schedule.lengths(confidence)
        running = scheduler.running_ids  # of those that left, nothing is kept
        self._proposals = {number: one for number, one in self._proposals.items() if number in running}
        for one, proposal, length, sure in zip(found, proposals, lengths, confidence, strict=True):
            proposal.confidence = sure
            self._proposals[one.request.request_id] = proposal
            one.drafts = self._offered(one.request, proposal, min(length, scheduler.num_useful_drafts(one)))

    def _offered(self, request: Request, proposal: _Proposal, length: int) -> tuple[int, ...]:
        tokens: Sequence[int] = proposal.tokens[:length]
        if self.forced is not None:
            assert not self._rejects(request), "forced tokens were drawn from no distribution"
            tokens = self.forced(request, tokens)[:length]
        # What follows an end is never asked for.
        end = next((k + 1 for k, token in enumerate(tokens) if request.ends_with(token)), len(tokens))
        return tuple(tokens[:end])

    def verify(
        self, plan: StepPlan, logits: Tensor, requests: Sequence[Request]
    ) -> tuple[Tensor, list[Request], Mapping[int, Verified]]:
        """Judges the drafts of a step; also what is left to sample: rows and requests without drafts.

        `logits` FP32 [n, vocab] has the rows of every sampling span in turn; rows of drafts are taken back from the
        slots of their requests as far as they were not accepted.
        """
        spans = [span for span in plan.spans if span.samples]
        groups = logits.split([span.num_choices for span in spans])
        plain, others, verified = [], [], {}
        for span, rows, request in zip(spans, groups, requests, strict=True):
            if not span.num_drafts:
                plain.append(rows)
                others.append(request)
                continue
            drafts = span.ids[len(span.ids) - span.num_drafts :]
            found = self._judge(request, drafts, rows)
            self._runner.keep(span.slot, span.start + 1 + found.num_accepted)
            verified[request.request_id] = found
            if self._schedule is not None:
                confidence = self._proposals[request.request_id].confidence
                self._schedule.calibration.judged(confidence, len(drafts), found.num_accepted)
        if self._schedule is not None and all(len(span.ids) == 1 + span.num_drafts for span in plan.spans):
            num_tokens = len(others) + sum(len(found.tokens) for found in verified.values())
            self._schedule.ran(len(plan.spans), plan.num_rows, num_tokens)
        return torch.cat(plain) if plain else logits[:0], others, verified

    def _rejects(self, request: Request) -> bool:
        return self._rule is DraftAccept.REJECTION and request.params.temperature > 0

    def _judge(self, request: Request, drafts: Sequence[int], rows: Tensor) -> Verified:
        if self._rejects(request):
            return self._by_rejection(request, drafts, rows)
        chosen: list[SampledToken] = []

        def target() -> Iterator[int]:
            for row in rows.unbind():
                chosen.append(sample(row, request, [token.token_id for token in chosen]))
                yield chosen[-1].token_id

        verdict = equality(drafts, target(), request.ends_with)
        return Verified(tokens=tuple(chosen), num_accepted=verdict.num_accepted)

    def _by_rejection(self, request: Request, drafts: Sequence[int], rows: Tensor) -> Verified:
        def target() -> Iterator[Tensor]:
            for k, row in enumerate(rows.unbind()):
                check_numbers(row, request, k)
                if k and request.constraint is not None:
                    request.constraint.push(drafts[k - 1])  # asked for the row behind it: it was accepted
                yield tempered(processed(row, request, drafts[:k]), request, k).softmax(0)

        draft_rows = self._proposals[request.request_id].rows[: len(drafts)]
        uniforms = [acceptance_uniforms(request.seed, request.num_known + k) for k in range(len(drafts) + 1)]
        verdict: Verdict = rejection(drafts, draft_rows, target(), uniforms, request.ends_with)
        if request.constraint is not None:
            request.constraint.push(verdict.tokens[-1])
        tokens = [reported(row, token, request) for row, token in zip(rows.unbind(), verdict.tokens, strict=False)]
        return Verified(tokens=tuple(tokens), num_accepted=verdict.num_accepted)
