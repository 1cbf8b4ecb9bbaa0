"""Whether a demand fits a machine, what binds, how much is left, and how far it could go.

    memory of a device  =  reserve + weights + activations + pool + images + left

    gpu             weights: everything loaded; Engram tables lie on the host
    ram, unified    weights: what every token reads; experts and tables stay in what is left, and the rest on the disk

Pages, STATE and images are those `planning.resolve` gives a run with the same memory.  The largest context and the
largest number of requests are searched by the same sums, one with the other held.  Integers only.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from flash41.cache.geometry import PoolGeometry
from flash41.config.architecture import ModelConfig
from flash41.errors import CapacityError
from flash41.planning.activations import StepShape, Term, activation_terms, encoder_term
from flash41.planning.demand import Demand, check_demand, demand_geometry, pool_bytes
from flash41.planning.machine import Machine
from flash41.planning.resolve import RunPlan, draft_tokens, resolve
from flash41.planning.traffic import Residence, Traffic, step_traffic
from flash41.planning.weights import RankWeights, rank_weights

MOST_REQUESTS = 1 << 20
"""Requests beyond which nobody counts."""


class Verdict(enum.Enum):
    """Whether it fits."""

    FITS = "fits"
    """With all weights in memory."""
    FITS_WITH_DISK = "fits, with experts on the disk"
    """What every token reads stays in memory; experts are read from the disk when they are not there."""
    TOO_LARGE = "does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlan:
    """The answer, in bytes of one device."""

    machine: Machine
    """The machine."""
    demand: Demand
    """What was asked."""
    geometry: PoolGeometry | None
    """Sizes of a page and of an entry; None for a model without compressed rows."""
    weights: RankWeights
    """Weights of one rank."""
    terms: tuple[Term, ...]
    """Activations, an upper estimate."""
    pool_bytes: int
    """Pages and STATE for all requests at full length."""
    run: RunPlan | None
    """The run with what memory the weights leave; None where it does not fit."""
    verdict: Verdict
    """Whether it fits."""
    binding: str
    """What ends first, in words."""
    largest_requests: int
    """Requests of the asked context that fit together."""
    largest_context: int
    """Tokens of as many requests as asked that fit together; 0 where not even one does."""
    residence: Residence
    """How much of experts and tables stays in memory."""
    alone: Traffic | None
    """A decode step of one request; None where nothing fits."""
    together: Traffic | None
    """A decode step of all requests."""

    @property
    def resident_bytes(self) -> int:
        """Weights that must stay in memory."""
        return self.weights.always_bytes if self.machine.maps_weights else self.weights.loaded_bytes

    @property
    def activation_bytes(self) -> int:
        """Sum of the terms."""
        return sum(term.num_bytes for term in self.terms)

    @property
    def image_bytes(self) -> int:
        """STATE images of the run."""
        if self.run is None or self.geometry is None:
            return 0
        return self.run.num_images * self.geometry.image_bytes

    @property
    def picture_bytes(self) -> int:
        """Rows of encoded pictures that the run keeps."""
        return 0 if self.run is None else self.run.pictures.rows_bytes

    @property
    def needed_bytes(self) -> int:
        """Everything but the reserve."""
        cache = self.pool_bytes + self.image_bytes + self.picture_bytes
        return self.resident_bytes + self.activation_bytes + cache

    @property
    def left_bytes(self) -> int:
        """What remains of a device; negative where it does not fit.  Mapped weights are kept in it."""
        return self.machine.usable_bytes - self.needed_bytes

    @property
    def fits(self) -> bool:
        """Whether the demand can run at all."""
        return self.verdict is not Verdict.TOO_LARGE


def plan_machine(config: ModelConfig, found: Machine, demand: Demand) -> MachinePlan:
    """The plan of a demand on a machine; ConfigError with every refusal that no memory would lift."""
    check_demand(config, found, demand)
    sums = _Sums(config, found, demand)
    requests, context = demand.requests, demand.context
    run = sums.run(requests, context)
    geometry, pool = demand_geometry(config, demand), pool_bytes(config, demand, requests, context)
    images = run.num_images * geometry.image_bytes if run and geometry else 0
    pictures = run.pictures.rows_bytes if run else 0
    residence = _residence(found, sums.weights, max(0, sums.budget(requests, context) - pool - images - pictures))
    largest_context = _largest(lambda tokens: sums.fits(requests, tokens), config.max_positions)
    alone, together = (
        step_traffic(
            config,
            sums.weights,
            geometry,
            found,
            residence,
            requests=count,
            context=context,
            draft_tokens=draft_tokens(demand.wish, config),
        )
        if run
        else None
        for count in (1, requests)
    )
    return MachinePlan(
        machine=found,
        demand=demand,
        geometry=geometry,
        weights=sums.weights,
        terms=sums.terms(requests, context),
        pool_bytes=pool,
        run=run,
        verdict=_verdict(run, residence),
        binding=_binding(sums, run, largest_context, config),
        largest_requests=_largest(lambda count: sums.fits(count, context), MOST_REQUESTS),
        largest_context=largest_context,
        residence=residence,
        alone=alone,
        together=together,
    )


class _Sums:
    """Bytes of one device for any number of requests and any context."""

    def __init__(self, config: ModelConfig, found: Machine, demand: Demand, weights: RankWeights | None = None) -> None:
        self.config, self.found, self.demand = config, found, demand
        self.weights = weights or rank_weights(
            config, found.num_devices, drafts=demand.wish.drafts, images=demand.images
        )
        self.resident = self.weights.always_bytes if found.maps_weights else self.weights.loaded_bytes

    def terms(self, requests: int, context: int) -> tuple[Term, ...]:
        step = StepShape(
            rows=self.demand.wish.max_num_batched_tokens,
            requests=requests,
            context=context,
            draft_tokens=draft_tokens(self.demand.wish, self.config),
            element_bytes=self.demand.element_bytes,
            ranks=self.found.num_devices,
        )
        terms = activation_terms(self.config, step)
        return (*terms, encoder_term(self.config, self.demand.element_bytes)) if self.demand.images else terms

    def budget(self, requests: int, context: int) -> int:
        """What weights and activations leave for pages, STATE and images."""
        activations = sum(term.num_bytes for term in self.terms(requests, context))
        return self.found.usable_bytes - self.resident - activations

    def run(self, requests: int, context: int) -> RunPlan | None:
        """The run with that budget, on each rank alike; None where not all requests reach the context together.

        Every rank keeps the whole cache, as all heads read the same rows.
        """
        budget = self.budget(requests, context)
        if budget <= 0:
            return None
        demand = self.demand
        wish = replace(
            demand.wish, images=demand.images, memory_bytes=budget, max_num_seqs=requests, max_model_len=context
        )
        try:
            run = resolve(wish, self.config)
        except CapacityError:
            return None
        return run if run.num_pages >= requests * -(-context // wish.block_size) else None

    def fits(self, requests: int, context: int) -> bool:
        return self.run(requests, context) is not None


def demand_fits(config: ModelConfig, found: Machine, demand: Demand, weights: RankWeights | None = None) -> bool:
    """Whether a demand whose refusals were checked fits; `weights` are those of a rank where they are known."""
    return _Sums(config, found, demand, weights).fits(demand.requests, demand.context)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest count up to `most` that fits, where fewer fit whenever more do; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _residence(found: Machine, weights: RankWeights, left: int) -> Residence:
    """Where memory is left, experts stay in it first, and tables behind them."""
    if not found.maps_weights:
        host = weights.table_bytes if found.host_bytes is None else found.host_bytes
        return Residence(experts=Fraction(1), tables=_part(host, weights.table_bytes))
    return Residence(
        experts=_part(left, weights.sometimes_bytes),
        tables=_part(max(0, left - weights.sometimes_bytes), weights.table_bytes),
    )


def _part(room: int, num_bytes: int) -> Fraction:
    return min(Fraction(1), Fraction(room, num_bytes)) if num_bytes else Fraction(1)


def _verdict(run: RunPlan | None, residence: Residence) -> Verdict:
    if run is None:
        return Verdict.TOO_LARGE
    return Verdict.FITS if residence.experts == 1 else Verdict.FITS_WITH_DISK


def _binding(sums: _Sums, run: RunPlan | None, largest_context: int, config: ModelConfig) -> str:
    if sums.resident > sums.found.usable_bytes:
        return "weights: they alone exceed the memory"
    if sums.budget(1, 1) <= 0:
        return "activations: what weights leave does not hold one step"
    if run is None:
        return "cache: pages, STATE and images of the requests exceed what weights and activations leave"
    if largest_context >= config.max_positions:
        return "the model, for longer requests: they end at its last position; memory, for more of them"
    return "memory, for longer requests and for more of them"
