"""A machine plan as JSON values, under stable keys; integers are bytes unless a key says otherwise."""

from dataclasses import asdict

from flash41.cache.budget import capacity_statement
from flash41.planning.capacity import MachinePlan
from flash41.planning.traffic import Residence, Traffic


def plan_document(plan: MachinePlan, remedies: tuple[str, ...]) -> dict[str, object]:
    """All of a plan, and what to change where it does not fit."""
    wish, found, geometry = plan.demand.wish, plan.machine, plan.geometry
    return {
        "fits": plan.fits,
        "verdict": plan.verdict.value,
        "binding": plan.binding,
        "remedies": list(remedies),
        "machine": {**asdict(found), "kind": found.kind.value, "assumptions": list(found.assumptions)},
        "asked": {
            "context": plan.demand.context,
            "requests": plan.demand.requests,
            "profile": wish.profile.value,
            "kv_cache_dtype": wish.pool.main.value,
            "index_cache_dtype": wish.pool.index.value,
            "draft": wish.draft.value,
            "block_size": wish.block_size,
            "max_num_batched_tokens": wish.max_num_batched_tokens,
            "prefix_cache": wish.prefix_cache,
            "images": plan.demand.images,
        },
        "largest_requests": plan.largest_requests,
        "largest_context": plan.largest_context,
        "device_bytes": {
            "total": found.device_bytes,
            "reserve": found.reserve_bytes,
            "weights": plan.resident_bytes,
            "activations": plan.activation_bytes,
            "pool": plan.pool_bytes,
            "state_images": plan.image_bytes,
            "picture_rows": plan.picture_bytes,
            "left": plan.left_bytes,
        },
        "weights": {**asdict(plan.weights), "loaded_bytes": plan.weights.loaded_bytes},
        "residence": _residence(plan.residence),
        "activations": [asdict(term) for term in plan.terms],
        "request": None
        if geometry is None
        else {
            "statement": capacity_statement(geometry),
            "page_bytes": geometry.page_bytes,
            "state_bytes": geometry.state_bytes,
            "image_bytes": geometry.image_bytes,
            "num_pages": plan.demand.requests * geometry.pages_for(plan.demand.context),
            "bytes": geometry.request_bytes(plan.demand.context),
        },
        "run": None
        if plan.run is None
        else {choice.name: {"value": choice.value, "reason": choice.reason} for choice in plan.run.choices},
        "decode": {
            "alone": None if plan.alone is None else _traffic(plan.alone),
            "together": None if plan.together is None else _traffic(plan.together),
        },
    }


def _residence(residence: Residence) -> dict[str, float]:
    """Parts of one, for people and programs that cannot read fractions."""
    return {"experts": round(float(residence.experts), 6), "tables": round(float(residence.tables), 6)}


def _traffic(traffic: Traffic) -> dict[str, object]:
    disk = traffic.disk_millitokens
    return {
        "requests": traffic.requests,
        "tokens_per_step": traffic.tokens,
        "weight_bytes": traffic.weight_bytes,
        "expert_bytes": traffic.expert_bytes,
        "cache_bytes": traffic.cache_bytes,
        "engram_bytes": traffic.engram_bytes,
        "disk_bytes": traffic.disk_bytes,
        "memory_ceiling_tokens_per_second": traffic.memory_millitokens / 1000,
        "disk_ceiling_tokens_per_second": None if disk is None else disk / 1000,
        "ceiling_tokens_per_second": traffic.millitokens / 1000,
        "roof": traffic.roof,
    }
