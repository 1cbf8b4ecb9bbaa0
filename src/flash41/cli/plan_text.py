"""A machine plan for people: the answer first, then the sums it comes from, then what was assumed."""

from collections.abc import Iterator, Sequence

from flash41.cache.budget import capacity_statement
from flash41.cli.common import human_bytes
from flash41.cli.sections import Section
from flash41.planning.capacity import MachinePlan
from flash41.planning.machine import Machine, MachineKind
from flash41.planning.traffic import Traffic

CPU_ONLY = "this version computes on processors, in one process; the figures are the model's on such GPUs"
ROUTING = "rows are routed to experts evenly, and the experts in memory are those of any other routing"
CEILING = "a ceiling counts nothing but reading, from memory and not from a processor's cache, and accepts every draft"


def plan_title(plan: MachinePlan, model: str, *, is_here: bool) -> str:
    """Who, where and what, in one line."""
    demand = plan.demand
    many = "1 request" if demand.requests == 1 else f"{demand.requests:,} requests"
    here = ", this one" if is_here else ""
    return f"{model} on {_machine(plan.machine)}{here}: {many} of {demand.context:,} tokens"


def plan_sections(plan: MachinePlan, remedies: Sequence[str]) -> Iterator[Section]:
    """All parts in order."""
    yield Section(title="Answer", facts=_answer(plan))
    if remedies:
        yield Section(title="Any one of these makes it fit", lines=remedies)
    yield _memory(plan)
    yield _requests(plan)
    yield _weights(plan)
    yield _activations(plan)
    yield from _decode(plan)
    yield Section(title="Assumptions", lines=_assumptions(plan))


def _machine(found: Machine) -> str:
    memory = human_bytes(found.device_bytes)
    if found.kind is MachineKind.GPU:
        return f"{found.num_devices} GPU{'' if found.num_devices == 1 else 's'} of {memory}"
    return f"a machine with {memory} of {'unified ' if found.kind is MachineKind.UNIFIED else ''}memory"


def _answer(plan: MachinePlan) -> list[tuple[str, str]]:
    demand = plan.demand
    facts = [
        ("verdict", plan.verdict.value),
        ("requests", f"at most {plan.largest_requests:,} of {demand.context:,} tokens at once"),
        ("context", f"at most {plan.largest_context:,} tokens for each of {demand.requests:,} at once"),
        ("binds", plan.binding),
        ("left", _bytes(plan.left_bytes) if plan.left_bytes >= 0 else f"{_bytes(-plan.left_bytes)} too few"),
    ]
    if plan.alone and plan.together:
        facts.append(("speed, one request", f"at most {_speed(plan.alone)}"))
        if demand.requests > 1:
            facts.append((f"speed, {demand.requests:,} together", f"at most {_speed(plan.together)}"))
    return facts


def _speed(traffic: Traffic) -> str:
    return f"{traffic.millitokens / 1000:,.2f} tokens per second; the {traffic.roof} ends it"


def _memory(plan: MachinePlan) -> Section:
    found, wish, demand = plan.machine, plan.demand.wish, plan.demand
    where = "Memory of each GPU" if found.kind is MachineKind.GPU else "Memory"
    weights = "all that is loaded" if not found.maps_weights else "what every token reads; it must stay in memory"
    reasons = {choice.name: choice.reason for choice in plan.run.choices} if plan.run else {}
    images, pictures = (reasons.get(name, "") for name in ("images", "rows of pictures"))
    left = "experts, embedding and Engram tables stay in it as far as they fit" if found.maps_weights else ""
    rows = [
        ("memory", found.device_bytes, ""),
        ("reserve", found.reserve_bytes, "for everything else"),
        ("weights", plan.resident_bytes, weights),
        ("activations", plan.activation_bytes, f"an upper estimate for steps of {wish.max_num_batched_tokens:,} rows"),
        ("pages and STATE", plan.pool_bytes, f"{demand.requests:,} x {demand.context:,} tokens"),
        ("STATE images", plan.image_bytes, images),
        *([("rows of pictures", plan.picture_bytes, pictures)] if plan.picture_bytes else []),
        ("left", plan.left_bytes, left),
    ]
    cells = [(name, f"{count:,}", _signed(count), why) for name, count, why in rows]
    return Section(title=where, headers=("part", "bytes", "", "what"), rows=cells, right=("bytes", ""))


def _requests(plan: MachinePlan) -> Section:
    geometry, context = plan.geometry, plan.demand.context
    if geometry is None:
        note = f"{plan.pool_bytes // plan.demand.requests:,} bytes of windows, whatever its length"
        return Section(title="What a request costs", lines=[note])
    pages = geometry.pages_for(context)
    facts = [
        ("cost", capacity_statement(geometry)),
        ("STATE", f"{geometry.state_bytes:,} bytes: windows of {geometry.num_layers} layers, open groups, cursor"),
        (
            "PAGE",
            f"{geometry.page_bytes:,} bytes of {geometry.block_size} tokens; {pages:,} pages for {context:,} tokens",
        ),
        ("together", _bytes(geometry.request_bytes(context))),
        ("rows", f"{geometry.pool.main.value} latents, {geometry.pool.index.value} index keys"),
    ]
    return Section(title="What a request costs", facts=facts)


def _weights(plan: MachinePlan) -> Section:
    weights, found, residence = plan.weights, plan.machine, plan.residence
    mapped = "mapped; {:.1%} stay in memory" if found.maps_weights else "resident"
    host = "mapped; {:.1%} stay in memory" if found.maps_weights else "on the host; {:.1%} stay in its memory"
    experts, tables = mapped.format(float(residence.experts)), host.format(float(residence.tables))
    rows = [
        ("dense", weights.dense_bytes, "resident"),
        ("norms as FP32", weights.widened_bytes, "resident"),
        ("routed experts", weights.expert_bytes, experts),
        ("embedding rows", weights.embedding_bytes, experts),
        ("drafts", weights.draft_dense_bytes, "resident"),
        ("drafts' routed experts", weights.draft_expert_bytes, experts),
        ("image encoder", weights.vision_bytes, "resident"),
        ("Engram tables", weights.table_bytes, tables),
    ]
    cells = [(name, f"{count:,}", human_bytes(count), where) for name, count, where in rows if count]
    title = "Weights of each GPU" if found.kind is MachineKind.GPU else "Weights"
    return Section(title=title, headers=("part", "bytes", "", "where"), rows=cells, right=("bytes", ""))


def _activations(plan: MachinePlan) -> Section:
    rows = [(term.name, term.formula, f"{term.num_bytes:,}", human_bytes(term.num_bytes)) for term in plan.terms]
    headers = ("part", "bytes at most", "bytes", "")
    return Section(title="Activations, an upper estimate", headers=headers, rows=rows, right=headers[2:])


def _decode(plan: MachinePlan) -> Iterator[Section]:
    if plan.alone is None or plan.together is None:
        return
    steps = (plan.alone,) if plan.together.requests == 1 else (plan.alone, plan.together)
    rows = [
        (
            f"{one.requests:,}",
            f"{one.tokens:,}",
            human_bytes(one.weight_bytes),
            human_bytes(one.expert_bytes),
            human_bytes(one.cache_bytes),
            human_bytes(one.engram_bytes),
            human_bytes(one.disk_bytes),
            f"{one.memory_millitokens / 1000:,.2f}",
            "-" if one.disk_millitokens is None else f"{one.disk_millitokens / 1000:,.2f}",
        )
        for one in steps
    ]
    headers = (
        "requests",
        "tokens",
        "weights",
        "experts of it",
        "cache",
        "Engram",
        "of all from disk",
        "memory: tokens/s <=",
        "disk: tokens/s <=",
    )
    notes = ("tokens/s <= tokens of a step x bytes per second / bytes that a step reads",)
    yield Section(title="What a decode step reads", headers=headers, rows=rows, right=headers, notes=notes)


def _assumptions(plan: MachinePlan) -> list[str]:
    lines = [*plan.machine.assumptions, ROUTING, CEILING]
    return [*lines, CPU_ONLY] if plan.machine.kind is MachineKind.GPU else lines


def _bytes(count: int) -> str:
    return f"{count:,} bytes" + (f" ({human_bytes(count)})" if count >= 1024 else "")


def _signed(count: int) -> str:
    return human_bytes(count) if count >= 0 else f"-{human_bytes(-count)}"
