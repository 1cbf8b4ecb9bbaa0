"""The whole page as one JSON document: every number that is drawn, computed here, drawn by `web/`."""

from flash41.checkpoint.schema import schema
from flash41.config.topology import LayerMode
from flash41.tools.anatomy import Anatomy
from flash41.tools.anatomy_page.forward import forward
from flash41.tools.anatomy_page.layers import group_records, layer_records, mode_records
from flash41.tools.anatomy_page.memory import memory
from flash41.tools.anatomy_page.parts import parts
from flash41.tools.anatomy_page.sizes import sizes
from flash41.tools.anatomy_page.tensors import Tensors
from flash41.version import __version__

Document = dict[str, object]


def page_document(anatomy: Anatomy, title: str, trace: Document | None = None) -> Document:
    """What the page draws of a model, and of a trace if there is one; `title` is what people call the model."""
    config, tensors = anatomy.config, Tensors(schema(anatomy.config))
    return {
        "title": title,
        "name": anatomy.name,
        "version": __version__,
        "facts": _facts(anatomy),
        "window": config.attention.window,
        "topk": config.indexer.topk,
        "channels": config.attention.head_dim,
        "index_channels": config.indexer.head_dim,
        "candidate_blocks": config.indexer.candidate_blocks,
        "candidate_block_size": config.indexer.candidate_block_size,
        "candidate_source": config.indexer.candidate_source_layer_id,
        "num_layers": config.num_layers,
        "layers": layer_records(anatomy),
        "groups": group_records(anatomy),
        "modes": mode_records(anatomy),
        "forward": forward(config, anatomy.topology, tensors),
        "memory": memory(anatomy),
        "sizes": sizes(anatomy),
        "parts": parts(config, tensors),
        "trace": trace,
    }


def _facts(anatomy: Anatomy) -> list[dict[str, object]]:
    """The numbers of the head; `unit` says how to write them."""
    config, ledger = anatomy.config, anatomy.ledger
    reusing = sum(1 for layer in anatomy.topology.layers if layer.mode is LayerMode.REUSE)
    facts: list[tuple[str, object, str, str]] = [
        ("parameters", ledger.total.num_parameters, "count", "weight elements, Engram tables included"),
        ("active per token", ledger.activation.total, "count", "parameters of the backbone that one token meets"),
        ("on disk", ledger.total.num_bytes, "bytes", "scales included"),
        ("layers", f"{config.num_layers} + {config.dspark.num_stages}", "text", "backbone + draft stages"),
        ("hidden", f"{config.mhc.streams} x {config.hidden_size}", "text", "residual streams x channels"),
        (
            "experts",
            f"{config.moe.num_experts_per_token} of {config.moe.num_experts}",
            "text",
            "per token and layer, + 1 shared",
        ),
        ("rows per query", *_rows(anatomy)),
        ("reuse a selection", f"{reusing} of {config.num_layers}", "text", "layers that read rows and score none"),
        ("positions", config.max_positions, "plain", "longest request"),
    ]
    if anatomy.cache.geometries:
        first = anatomy.cache.geometries[0]
        pools = f"{first.pool.main.value} rows, {first.pool.index.value} keys"
        rate = first.bytes_per_token
        per_token = rate.numerator if rate.denominator == 1 else float(rate)
        facts.append(("cache per token", per_token, "bytes", f"PAGE / {first.block_size}: {pools}"))
        facts.append(("per request", first.state_bytes, "bytes", "STATE, whatever the length"))
    return [{"label": label, "value": value, "unit": unit, "note": note} for label, value, unit, note in facts]


def _rows(anatomy: Anatomy) -> tuple[str, str, str]:
    window, topk = anatomy.config.attention.window, anatomy.config.indexer.topk
    if anatomy.topology.kv_owners:
        return f"{window} + {topk}", "text", "window + selected"
    return str(window), "text", "of its window"
