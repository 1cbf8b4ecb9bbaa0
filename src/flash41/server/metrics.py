"""Figures for Prometheus, in a registry of their own.

Engine figures are read from the service when somebody asks; HTTP figures are counted as requests end.
"""

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from flash41.server.limits import Gate
from flash41.server.service import Service, ServiceStats

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

GAUGES = (
    ("requests_running", "Requests that are computed.", "num_running"),
    ("requests_waiting", "Requests that wait for a slot or for pages.", "num_waiting"),
    ("cache_pages", "Pages of the cache.", "num_pages"),
    ("cache_pages_free", "Pages that hold nothing.", "num_free_pages"),
    ("cache_pages_kept", "Pages kept for later requests; they make room when needed.", "num_kept_pages"),
    ("cache_images", "State images that could be resumed now.", "num_images"),
    ("picture_rows", "Rows of encoded pictures that are kept.", "num_picture_rows"),
)
COUNTERS = (
    ("preemptions", "Times a request gave way to another.", "num_preemptions"),
    ("prefix_lookups", "Requests that began.", "num_lookups"),
    ("prefix_hits", "Requests that began behind cached pages.", "num_hits"),
    ("prompt_tokens", "Known tokens of requests that began.", "wanted_tokens"),
    ("cached_tokens", "Of these, not computed because they were cached.", "cached_tokens"),
    ("lost_tokens", "Of these, cached but computed again for want of an image.", "lost_tokens"),
    ("images_made", "State images made.", "num_images_made"),
    ("evicted_pages", "Cached pages that made room.", "num_evicted_pages"),
    ("pictures_encoded", "Pictures that were encoded.", "num_pictures_encoded"),
    ("pictures_found", "Pictures that were shown and did not have to be encoded.", "num_pictures_found"),
    ("draft_blocks", "Verifications of one request's drafts.", "num_draft_blocks"),
    ("draft_block_tokens", "Tokens that came of them, accepted drafts and one more each.", "num_block_tokens"),
)
POSITION_COUNTERS = (
    ("drafted_tokens", "Drafts verified, by position behind the newest token, from 1.", "drafted_tokens"),
    ("accepted_tokens", "Of these, tokens of an answer.", "accepted_tokens"),
)
OWN_COUNTERS = (
    ("steps", "Steps computed.", "num_steps"),
    ("failed_steps", "Steps that failed.", "num_failed_steps"),
    ("step_seconds", "Time spent in steps.", "step_seconds"),
    ("finished_requests", "Answers that ended by themselves.", "num_finished"),
    ("generated_tokens", "Tokens generated.", "num_generated_tokens"),
)
"""Name, meaning, and field: of the engine, and of the service that drives it."""


class Metrics:
    """All figures of one server."""

    def __init__(self, service: Service, gate: Gate) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineFigures(service.stats))
        self.requests = Counter(
            "flash41_http_requests", "Requests answered.", ("route", "status"), registry=self._registry
        )
        self.duration = Histogram(
            "flash41_http_request_seconds", "Time of a request.", ("route",), buckets=SECONDS, registry=self._registry
        )
        self.first_token = Histogram(
            "flash41_first_token_seconds", "Time to the first token.", buckets=SECONDS, registry=self._registry
        )
        self.disconnects = Counter(
            "flash41_http_disconnects", "Clients that went away before the end.", registry=self._registry
        )
        self._gauge("flash41_open_answers", "Answers asked for and not ended.", lambda: gate.num_open)
        self._gauge("flash41_refused_requests", "Requests refused for a full queue.", lambda: gate.num_refused)
        self._gauge("flash41_ready", "Whether requests would be computed.", lambda: service.is_ready)

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(name, text, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """All figures in the text format of Prometheus."""
        return generate_latest(self._registry)


class _EngineFigures(Collector):
    """Reads the engine's figures when they are asked for."""

    def __init__(self, stats: Callable[[], ServiceStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """One family per figure."""
        stats = self._stats()
        for name, text, field in GAUGES:
            yield GaugeMetricFamily(f"flash41_engine_{name}", text, value=getattr(stats.engine, field))
        for name, text, field in COUNTERS:
            yield CounterMetricFamily(f"flash41_engine_{name}", text, value=getattr(stats.engine, field))
        for name, text, field in POSITION_COUNTERS:
            family = CounterMetricFamily(f"flash41_engine_{name}", text, labels=("position",))
            for position, value in enumerate(getattr(stats.engine, field), 1):
                family.add_metric((str(position),), value)
            yield family
        for name, text, field in OWN_COUNTERS:
            yield CounterMetricFamily(f"flash41_engine_{name}", text, value=getattr(stats, field))
        age = time.monotonic() - stats.taken
        yield GaugeMetricFamily("flash41_engine_figures_age_seconds", "Age of these figures.", value=age)
