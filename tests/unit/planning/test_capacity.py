"""Machine plans: sums that close, answers at their edges, the run of the engine, and memory that is as planned."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.config.run import Draft, PoolDtype, Profile
from flash41.engine.llm import LLM
from flash41.planning.capacity import MachinePlan, Verdict, demand_fits, plan_machine
from flash41.planning.demand import Demand
from flash41.planning.machine import Machine, MachineKind, machine
from flash41.planning.remedies import remedies
from flash41.planning.resolve import resolve
from helpers.checkpoints import TINY
from helpers.config_documents import release_config, tiny_config
from helpers.planned import GIB, demand, gpus, ram

UNIFIED = machine(MachineKind.UNIFIED, 128 * GIB)


def of_release(found: Machine, wanted: Demand) -> MachinePlan:
    return plan_machine(release_config(), found, wanted)


@pytest.mark.parametrize("found", [gpus(4), ram(64), UNIFIED], ids=["gpu", "ram", "unified"])
def test_the_parts_of_a_memory_are_the_memory(found: Machine) -> None:
    plan = of_release(found, demand(4, 100_000))
    parts = (plan.resident_bytes, plan.activation_bytes, plan.pool_bytes, plan.image_bytes, plan.left_bytes)
    assert found.reserve_bytes + sum(parts) == found.device_bytes
    assert min(parts) >= 0
    assert plan.fits


@pytest.mark.parametrize("found", [gpus(4), ram(64), UNIFIED], ids=["gpu", "ram", "unified"])
def test_the_largest_answers_fit_and_one_more_does_not(found: Machine) -> None:
    wanted = demand(40, 250_000)
    plan = of_release(found, wanted)
    assert plan.largest_requests > 0

    def fits(requests: int, context: int) -> bool:
        wish = replace(wanted.wish, max_num_seqs=requests, max_model_len=context)
        return demand_fits(release_config(), found, replace(wanted, wish=wish))

    assert fits(plan.largest_requests, 250_000)
    assert not fits(plan.largest_requests + 1, 250_000)
    assert fits(40, plan.largest_context)
    assert plan.largest_context == release_config().max_positions or not fits(40, plan.largest_context + 1)


@settings(max_examples=12, deadline=None)
@given(
    gibs=st.integers(12, 400),
    requests=st.integers(1, 300),
    context=st.integers(1, 1 << 20),
    draft=st.booleans(),
    main=st.sampled_from([PoolDtype.BF16, PoolDtype.FP4]),
)
def test_a_plan_agrees_with_itself(gibs: int, requests: int, context: int, draft: bool, main: PoolDtype) -> None:
    wanted = demand(requests, context, draft=Draft.ON if draft else Draft.OFF, kv_cache_dtype=main)
    plan = of_release(ram(gibs), wanted)
    assert plan.fits == (plan.largest_requests >= requests) == (plan.largest_context >= context)
    assert plan.fits == (plan.run is not None) == (plan.alone is not None)
    assert bool(remedies(release_config(), plan)) != plan.fits
    if plan.run:
        assert plan.left_bytes >= 0
        assert plan.run.placement is not None
        assert plan.run.placement.total_bytes == plan.pool_bytes
        assert plan.run.total_bytes == plan.pool_bytes + plan.image_bytes


def test_the_run_is_the_one_an_engine_with_that_memory_gets() -> None:
    wanted = demand(4, 100_000)
    plan = of_release(ram(64), wanted)
    budget = plan.machine.usable_bytes - plan.resident_bytes - plan.activation_bytes
    assert plan.run == resolve(replace(wanted.wish, memory_bytes=budget), release_config())


def test_an_engine_takes_the_bytes_that_were_planned() -> None:
    for draft, images in ((Draft.OFF, False), (Draft.ON, True)):
        wanted = demand(3, 600, images=images, draft=draft, index_cache_dtype=PoolDtype.FP4)
        plan = plan_machine(tiny_config(), ram(4), wanted)
        assert (plan.picture_bytes > 0) is images
        llm = LLM(
            TINY,
            max_num_seqs=3,
            max_model_len=600,
            draft=draft.value,
            index_cache_dtype="fp4",
            backend="reference",
            images=images,
            memory_bytes=plan.pool_bytes + plan.image_bytes + plan.picture_bytes,
        )
        assert llm.plan.placement is not None
        assert llm.plan.placement.total_bytes == plan.pool_bytes
        store, arena = llm.engine.runner.store, llm.engine.runner.images
        assert store.pool.memory.nbytes == plan.pool_bytes  # type: ignore[attr-defined]
        assert arena is not None
        assert arena.memory.nbytes == plan.image_bytes


def test_weights_that_exceed_a_gpu_are_what_binds() -> None:
    plan = of_release(gpus(1, 80), demand())
    assert plan.verdict is Verdict.TOO_LARGE
    assert plan.binding.startswith("weights:")
    assert (plan.largest_requests, plan.largest_context, plan.run) == (0, 0, None)
    assert plan.left_bytes < 0


def test_a_machine_that_maps_reads_experts_from_the_disk() -> None:
    small, large, huge = (of_release(ram(gibs), demand()) for gibs in (64, 400, 600))
    assert [plan.verdict for plan in (small, large, huge)] == [Verdict.FITS_WITH_DISK, Verdict.FITS, Verdict.FITS]
    assert 0 < small.residence.experts < 1
    assert small.residence.tables == 0
    assert large.residence.experts == huge.residence.experts == 1
    assert 0 < large.residence.tables < huge.residence.tables == 1
    assert small.alone is not None
    assert huge.alone is not None
    assert small.alone.roof == "disk"
    assert (huge.alone.roof, huge.alone.disk_millitokens) == ("memory", None)


def test_what_binds_is_told_in_order() -> None:
    assert of_release(ram(8), demand()).binding.startswith("weights:")
    assert of_release(ram(10), demand()).binding.startswith("activations:")
    assert of_release(ram(64), demand(600, 1 << 20)).binding.startswith("cache:")
    assert of_release(ram(64), demand()).binding.startswith("the model, for longer requests")
    assert of_release(ram(64), demand(40, 100_000)).binding.startswith("memory, for longer requests")


def test_the_host_of_gpus_keeps_as_much_of_the_tables_as_it_has() -> None:
    tables = of_release(gpus(4), demand()).weights.table_bytes
    half = of_release(gpus(4, host_bytes=tables // 2), demand())
    assert half.residence.tables * 2 == 1
    assert half.alone is not None
    assert half.alone.disk_bytes == 12_672 // 2


def test_images_and_drafts_are_loaded_only_where_asked_for() -> None:
    plain, images, drafts = (
        of_release(gpus(8), wanted) for wanted in (demand(), demand(images=True), demand(draft=Draft.ON))
    )
    assert images.resident_bytes - plain.resident_bytes == images.weights.vision_bytes + (
        images.weights.widened_bytes - plain.weights.widened_bytes
    )
    assert [term.name for term in images.terms if term not in plain.terms] == ["image encoder"]
    assert drafts.weights.draft_expert_bytes > 0
    assert drafts.geometry is not None
    assert (drafts.geometry.num_layers, drafts.geometry.window_ring) == (43, 133)


def test_profile_fp32_takes_activations_and_rows_of_four_bytes() -> None:
    vendor, wide = (of_release(ram(64), demand(profile=profile)) for profile in (Profile.VENDOR, Profile.FP32))
    assert wide.activation_bytes > vendor.activation_bytes
    assert wide.pool_bytes > 2 * vendor.pool_bytes
