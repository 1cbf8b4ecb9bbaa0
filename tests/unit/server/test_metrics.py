from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

from flash41.checkpoint.expert_counts import ExpertCounts
from flash41.engine.stats import EngineStats
from flash41.server.metrics import Metrics
from flash41.server.service import ServiceStats


def lines(experts: tuple[ExpertCounts, ...]) -> list[str]:
    numbers: dict[str, Any] = {field.name: 0 for field in fields(EngineStats)}
    engine = EngineStats(**numbers | {"approximate": (), "drafted_tokens": (), "accepted_tokens": (), "experts": ()})
    service = SimpleNamespace(stats=lambda: ServiceStats(engine=replace(engine, experts=experts)), is_ready=True)
    gate = SimpleNamespace(num_open=0, num_refused=0)
    return Metrics(service, gate).text().decode().splitlines()  # type: ignore[arg-type]


def test_experts_in_files_are_counted_by_layer() -> None:
    first = ExpertCounts(layer="layers.0", num_hits=7, num_misses=2, read_bytes=900, num_hot=3, num_moves=5)
    second = ExpertCounts(layer="layers.1", num_expected=4, num_right=1)
    found = lines((first, second))
    for line in (
        'flash41_engine_hot_experts{layer="layers.0"} 3.0',
        'flash41_engine_expert_hits_total{layer="layers.0"} 7.0',
        'flash41_engine_expert_misses_total{layer="layers.0"} 2.0',
        'flash41_engine_expert_read_bytes_total{layer="layers.0"} 900.0',
        'flash41_engine_expert_moves_total{layer="layers.0"} 5.0',
        'flash41_engine_expert_guesses_total{layer="layers.1"} 4.0',
        'flash41_engine_expert_right_guesses_total{layer="layers.1"} 1.0',
    ):
        assert line in found


def test_with_all_weights_in_memory_there_is_nothing_to_count() -> None:
    assert not [line for line in lines(()) if "expert" in line and not line.startswith("#")]
