"""An anatomy for people: facts, the strip of layers, and tables of groups, sizes, activation and storage."""

from dataclasses import fields

import typer

from flash41.cli.common import human_bytes, human_count, print_facts, print_heading, print_table
from flash41.config.architecture import ModelConfig
from flash41.tools.anatomy import ARCHITECTURE, MODEL_TYPE, STORAGE_FORMATS, Anatomy
from flash41.tools.cache_figures import CacheFigures
from flash41.tools.ledger import Amount
from flash41.tools.strip import LEGEND, strip

AMOUNT_HEADERS = ("tensors", "parameters", "", "bytes", " ")
"""The columns without a name repeat the one before them in words."""


def print_anatomy(anatomy: Anatomy) -> None:
    """Writes everything to standard output."""
    typer.echo(f"{ARCHITECTURE} (model_type {MODEL_TYPE}): {anatomy.name}")
    print_heading("Architecture")
    print_facts(facts(anatomy.config))
    print_heading("Layers")
    _print_strip(anatomy)
    print_heading("Index groups")
    _print_groups(anatomy)
    print_heading("Size by part")
    rows = [(name, *_amount(amount)) for name, amount in anatomy.ledger.manifest.items()]
    _print_amounts("part", [*rows, ("total", *_amount(anatomy.ledger.total))])
    print_heading("Size by owner")
    rows = [(name, *_amount(amount)) for name, amount in anatomy.ledger.owners.items()]
    _print_amounts("owner", rows)
    print_heading("Parameters active per token")
    _print_activation(anatomy)
    print_heading("Storage of weights, scales included")
    _print_storage(anatomy)
    print_heading(f"Cache, pages of {anatomy.cache.block_size} tokens")
    _print_cache(anatomy.cache)


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


def _print_strip(anatomy: Anatomy) -> None:
    rows = strip(anatomy.topology)
    width = max(len(row.label) for row in rows)
    for row in rows:
        typer.echo(f"  {row.label.ljust(width)}  {row.layers}  {row.drafts}".rstrip())
    typer.echo("")
    for line in LEGEND:
        typer.echo(f"  {line}")


def _print_groups(anatomy: Anatomy) -> None:
    headers = ("layers", "ratio", "KV owner", "top-k owner", "modes")
    rows = []
    for group in anatomy.groups:
        last = group.start + group.size - 1
        span = f"{group.start}-{last}" if group.size > 1 else str(last)
        owners = ("-" if owner is None else str(owner) for owner in (group.kv_owner, group.topk_owner))
        rows.append((span, str(group.ratio), *owners, group.summary + (" (draft)" if group.is_draft else "")))
    print_table(headers, rows, right=headers[:-1])


def _amount(amount: Amount) -> tuple[str, ...]:
    return (
        f"{amount.num_tensors:,}",
        f"{amount.num_parameters:,}",
        human_count(amount.num_parameters),
        f"{amount.num_bytes:,}",
        human_bytes(amount.num_bytes),
    )


def _print_amounts(name: str, rows: list[tuple[str, ...]]) -> None:
    print_table((name, *AMOUNT_HEADERS), rows, right=AMOUNT_HEADERS)


def _print_activation(anatomy: Anatomy) -> None:
    activation = anatomy.ledger.activation
    parts = [(part.name.replace("_", " "), getattr(activation, part.name)) for part in fields(activation)]
    totals = [
        ("total", activation.total),
        ("without embedding", anatomy.ledger.activation_without_embedding),
        ("encoder layers only", anatomy.ledger.encoder_activation.total),
    ]
    rows = [(name, f"{count:,}", human_count(count)) for name, count in (*parts, *totals)]
    print_table(("part", "parameters", ""), rows, right=("parameters", ""))


def _print_storage(anatomy: Anatomy) -> None:
    rows = []
    for kind, amount in anatomy.ledger.storage.items():
        element, scale, group = STORAGE_FORMATS[kind]
        scaling = f"{scale} per {group[0]} x {group[1]}" if scale and group else "-"
        rows.append((kind.value, element, scaling, *_amount(amount)))
    print_table(("class", "element", "scale", *AMOUNT_HEADERS), rows, right=AMOUNT_HEADERS)


def _print_cache(cache: CacheFigures) -> None:
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
    if rows:
        print_table(headers, rows, right=headers[2:])
    for fault in cache.faults:
        typer.echo(f"  refused: {fault}")
