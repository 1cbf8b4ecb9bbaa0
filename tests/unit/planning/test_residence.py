from typing import Any

import pytest

from flash41.checkpoint.residence import Residence, weight_sizes
from flash41.checkpoint.stored import Scope
from flash41.config.run import Draft, RunWish, Weights
from flash41.errors import CapacityError
from flash41.planning.residence import WeightsPlan, weights_plan
from flash41.planning.resolve import default_block_size, resolve
from helpers.config_documents import tiny_config

CONFIG = tiny_config()
SIZES = weight_sizes(CONFIG, [Scope.BACKBONE])


def plan(weights: Weights = Weights.AUTO, *, memory: int | None = None, **known: int | None) -> WeightsPlan:
    return weights_plan(RunWish(weights=weights, weights_memory_bytes=memory), CONFIG, **known)  # type: ignore[arg-type]


def test_mapped_keeps_nothing_whatever_there_is() -> None:
    found = plan(Weights.MAPPED, available_bytes=1 << 40)
    assert (found.residence, found.resident_bytes) == (Residence(), 0)
    assert "as asked" in found.reason


@pytest.mark.parametrize("weights", [Weights.AUTO, Weights.RESIDENT])
def test_what_fits_is_resident(weights: Weights) -> None:
    found = plan(weights, memory=SIZES.total_bytes)
    assert (found.residence, found.resident_bytes) == (Residence(whole=True), SIZES.total_bytes)
    assert found.reason == f"resident: all weights, within {SIZES.total_bytes:,} bytes (weights_memory_bytes, as asked)"


def test_resident_weights_that_do_not_fit_are_refused_with_the_alternatives() -> None:
    with pytest.raises(CapacityError) as caught:
        plan(Weights.RESIDENT, memory=SIZES.total_bytes - 1)
    assert f"bytes of resident weights: got {SIZES.total_bytes}, expected at most {SIZES.total_bytes - 1}" in str(
        caught.value
    )
    assert "weights auto keeps the hottest in memory" in str(caught.value)


@pytest.mark.parametrize("num_experts", [0, 1, 13])
def test_auto_keeps_what_every_step_reads_and_whole_experts_with_the_rest(num_experts: int) -> None:
    budget = SIZES.dense_bytes + (num_experts + 1) * SIZES.one_expert_bytes - 1
    found = plan(memory=budget)
    assert found.residence == Residence(dense=True, hot_bytes=num_experts * SIZES.one_expert_bytes)
    assert found.resident_bytes <= budget
    assert f"{num_experts / SIZES.num_expert_layers:.1f} experts a layer" in found.reason


def test_auto_is_mapped_where_not_even_that_fits() -> None:
    found = plan(memory=SIZES.dense_bytes - 1)
    assert found.residence == Residence()
    assert f"nor do the {SIZES.dense_bytes:,} that every step reads" in found.reason


def test_without_a_word_four_fifths_of_what_is_available_are_taken_less_the_caches() -> None:
    enough = -(-(SIZES.total_bytes + 1000) * 100 // 80)
    assert plan(available_bytes=enough, cache_bytes=1000).residence.whole
    less = plan(available_bytes=enough - 2, cache_bytes=1000)
    assert not less.residence.whole
    assert f"80 % of the {enough - 2:,} available" in less.reason


def test_of_an_unknown_machine_nothing_is_decided_unless_it_is_asked_for() -> None:
    wish = RunWish(block_size=default_block_size(CONFIG), max_num_seqs=1)
    assert resolve(wish, CONFIG).residence == Residence()
    assert not [choice for choice in resolve(wish, CONFIG).choices if "weights" in choice.name]
    assert plan(Weights.RESIDENT).residence.whole


@pytest.mark.parametrize("parts", [{"draft": Draft.ON}, {"images": True}])
def test_draft_stages_and_the_vision_tower_count_where_they_are_loaded(parts: dict[str, Any]) -> None:
    wish = RunWish(weights=Weights.RESIDENT, **parts)
    assert weights_plan(wish, CONFIG).resident_bytes > SIZES.total_bytes


def test_the_decision_is_a_choice_of_the_plan() -> None:
    wish = RunWish(block_size=default_block_size(CONFIG), max_num_seqs=1, weights_memory_bytes=SIZES.total_bytes)
    found = resolve(wish, CONFIG)
    assert found.residence.whole
    assert str(found.choices[-1]).startswith(f"bytes of weights in memory {SIZES.total_bytes:,}: resident: ")
