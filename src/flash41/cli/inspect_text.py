"""An anatomy for people: facts, the strip of layers, and tables of groups, modes, sizes, activation and storage."""

from collections.abc import Iterator
from dataclasses import fields, replace

from flash41.cli.common import human_bytes, human_count
from flash41.cli.sections import Section
from flash41.config.architecture import ModelConfig
from flash41.tools.anatomy import ARCHITECTURE, MODEL_TYPE, STORAGE_FORMATS, Anatomy
from flash41.tools.cache_figures import CacheFigures
from flash41.tools.ledger import Amount, Ledger
from flash41.tools.strip import LEGEND, strip

AMOUNT_HEADERS = ("tensors", "parameters", "", "bytes", " ")
"""The columns without a name repeat the one before them in words."""


def anatomy_title(anatomy: Anatomy) -> str:
    """What is taken apart, in one line."""
    return f"{ARCHITECTURE} (model_type {MODEL_TYPE}): {anatomy.name}"


def anatomy_sections(anatomy: Anatomy, *, with_tensors: bool) -> Iterator[Section]:
    """All parts in order; the table of tensors only where asked for, as it is long."""
    sizes = anatomy.ledger
    yield Section(title="Architecture", facts=facts(anatomy.config))
    yield Section(title="Layers", lines=_strip_lines(anatomy))
    yield _groups(anatomy)
    yield _modes(anatomy)
    parts = [(name, *_amount(amount)) for name, amount in sizes.manifest.items()]
    yield _amounts("Size by part", "part", [*parts, ("total", *_amount(sizes.total))])
    yield _amounts("Size by owner", "owner", [(name, *_amount(amount)) for name, amount in sizes.owners.items()])
    yield _shares(sizes)
    yield _activation(anatomy)
    yield _storage(anatomy)
    if with_tensors:
        yield _tensors(anatomy)
    if anatomy.shards or anatomy.index_faults:
        rows = [(name, *_amount(amount)) for name, amount in anatomy.shards.items()]
        yield replace(_amounts("Files by the index", "file", rows), notes=anatomy.index_faults)
    yield _cache(anatomy.cache)


def facts(config: ModelConfig) -> list[tuple[str, str]]:
    """One line per mechanism."""
    attention, indexer, moe, engram = config.attention, config.indexer, config.moe, config.engram
    dspark, vision, tokens = config.dspark, config.vision, config.tokens
    return [
        ("layers", f"{config.num_layers} + {dspark.num_stages} draft stages"),
        ("residual", f"{config.mhc.streams} streams of {config.hidden_size:,}"),
        ("vocabulary", f"{config.vocab_size:,}"),
        ("positions", f"{config.max_positions:,}"),
        (
            "attention",
            f"{attention.num_heads} heads of {attention.head_dim}, one KV row for all; window {attention.window}; "
            f"query rank {attention.q_lora_rank:,}; output {attention.o_groups} groups of {attention.o_lora_rank:,}",
        ),
        (
            "indexer",
            f"{indexer.num_heads} heads of {indexer.head_dim}, {indexer.topk} rows chosen{_candidates(config)}",
        ),
        (
            "experts",
            f"{moe.num_experts} routed, {moe.num_experts_per_token} per token, + 1 shared; inner width "
            f"{moe.intermediate_size:,}",
        ),
        (
            "Engram",
            f"layers {_listed(engram.layer_ids)}; {engram.num_columns} rows of {engram.head_dim} per token and layer; "
            f"tables of {_listed(engram.table_rows)} rows",
        ),
        (
            "drafter",
            f"blocks of {dspark.block_size}; {dspark.num_experts} routed experts, {dspark.num_experts_per_token} per "
            f"row; reads the inputs of layers {_listed(dspark.target_layer_ids)}",
        ),
        ("vision", f"{vision.num_layers} layers of {vision.hidden_size:,}; patches of {vision.patch_size} pixels"),
        (
            "token ids",
            f"BOS {tokens.bos}, EOS {tokens.eos}, padding {tokens.pad}, image {tokens.image}, "
            f"draft noise {dspark.noise_token_id}",
        ),
    ]


def _candidates(config: ModelConfig) -> str:
    indexer = config.indexer
    if indexer.candidate_source_layer_id is None:
        return "; no candidate source"
    return (
        f"; candidates from layer {indexer.candidate_source_layer_id}: {indexer.candidate_blocks:,} blocks of "
        f"{indexer.candidate_block_size} rows"
    )


def _listed(numbers: tuple[int, ...]) -> str:
    return " and ".join(f"{number:,}" for number in numbers) if len(numbers) < 3 else ", ".join(map(str, numbers))


def _strip_lines(anatomy: Anatomy) -> list[str]:
    rows = strip(anatomy.topology)
    width = max(len(row.label) for row in rows)
    return [*(f"{row.label.ljust(width)}  {row.layers}  {row.drafts}".rstrip() for row in rows), "", *LEGEND]


def _groups(anatomy: Anatomy) -> Section:
    headers = ("layers", "ratio", "KV owner", "top-k owner", "modes")
    rows = []
    for group in anatomy.groups:
        last = group.start + group.size - 1
        span = f"{group.start}-{last}" if group.size > 1 else str(last)
        owners = ("-" if owner is None else str(owner) for owner in (group.kv_owner, group.topk_owner))
        rows.append((span, str(group.ratio), *owners, group.summary + (" (draft)" if group.is_draft else "")))
    return Section(title="Index groups", headers=headers, rows=rows, right=headers[:-1])


def _modes(anatomy: Anatomy) -> Section:
    headers = ("mode", "layers", "writes planes", "selects", "scored rows", "parameters beyond those of every layer")
    rows = [
        (
            row.mode.value,
            str(len(row.layer_ids)),
            "yes" if row.writes_planes else "no",
            "yes" if row.scores else "no",
            row.score_width,
            " or ".join(f"{count:,}" for count in row.extra_parameters) or "-",
        )
        for row in anatomy.modes
    ]
    return Section(title="Modes", headers=headers, rows=rows, right=("layers",))


def _amount(amount: Amount) -> tuple[str, ...]:
    return (
        f"{amount.num_tensors:,}",
        f"{amount.num_parameters:,}",
        human_count(amount.num_parameters),
        f"{amount.num_bytes:,}",
        human_bytes(amount.num_bytes),
    )


def _amounts(title: str, name: str, rows: list[tuple[str, ...]]) -> Section:
    return Section(title=title, headers=(name, *AMOUNT_HEADERS), rows=rows, right=AMOUNT_HEADERS)


def _shares(sizes: Ledger) -> Section:
    rows = [
        (row, f"{count:,}", human_count(count), f"{sizes.percent(row):.2f} %") for row, count in sizes.shares.items()
    ]
    headers = ("part", "parameters", "", "share")
    notes = ("outside: compressors, indexers, routers, residual mixing of the experts, norms",)
    return Section(title="Shares of all parameters", headers=headers, rows=rows, right=headers[1:], notes=notes)


def _activation(anatomy: Anatomy) -> Section:
    activation = anatomy.ledger.activation
    parts = [(part.name.replace("_", " "), getattr(activation, part.name)) for part in fields(activation)]
    totals = [
        ("total", activation.total),
        ("without embedding", anatomy.ledger.activation_without_embedding),
        ("encoder layers, prefill half", anatomy.ledger.encoder_activation.total),
        ("decoder layers", anatomy.ledger.decoder_activation),
    ]
    rows = [(name, f"{count:,}", human_count(count)) for name, count in (*parts, *totals)]
    title, right = "Parameters active per token", ("parameters", "")
    return Section(title=title, headers=("part", "parameters", ""), rows=rows, right=right)


def _storage(anatomy: Anatomy) -> Section:
    rows = []
    for kind, amount in anatomy.ledger.storage.items():
        element, scale, group = STORAGE_FORMATS[kind]
        scaling = f"{scale} per {group[0]} x {group[1]}" if scale and group else "-"
        rows.append((kind.value, element, scaling, *_amount(amount)))
    headers = ("class", "element", "scale", *AMOUNT_HEADERS)
    return Section(title="Storage of weights, scales included", headers=headers, rows=rows, right=AMOUNT_HEADERS)


def _tensors(anatomy: Anatomy) -> Section:
    headers = ("name", "shape", "dtype", "ranks", "count", "bytes", " ")
    rows = [
        (
            row.pattern,
            str(list(row.shape)),
            row.dtype,
            row.cut,
            f"{row.num_tensors:,}",
            f"{row.num_bytes:,}",
            human_bytes(row.num_bytes),
        )
        for row in anatomy.patterns
    ]
    return Section(title="Tensors", headers=headers, rows=rows, right=headers[4:])


def _cache(cache: CacheFigures) -> Section:
    rows = [
        (
            geometry.pool.main.value,
            geometry.pool.index.value,
            str(geometry.draft_tokens),
            f"{geometry.page_bytes:,}",
            f"{float(geometry.bytes_per_token):,.10g}",
            f"{geometry.state_bytes:,}",
            human_bytes(geometry.image_bytes),
            human_bytes(geometry.request_bytes(cache.max_positions)),
        )
        for geometry in cache.geometries
    ]
    longest = f"{cache.max_positions:,} tokens"
    headers = ("main", "index", "drafts", "page", "per token", "request state", "kept image", longest)
    title = f"Cache, pages of {cache.block_size} tokens"
    notes = [f"refused: {fault}" for fault in cache.faults]
    return Section(title=title, headers=headers, rows=rows, right=headers[2:], notes=notes)
