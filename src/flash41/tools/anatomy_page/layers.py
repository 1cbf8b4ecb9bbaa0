"""What each layer is, writes, reads and scores, in words and numbers of this configuration."""

from collections.abc import Iterable, Mapping, Sequence

from flash41.config.architecture import ModelConfig
from flash41.config.topology import LayerMode, LayerSpec
from flash41.tools.anatomy import Anatomy

MODES = {
    LayerMode.WINDOW: "Reads only its own window of the last positions.",
    LayerMode.FULL: "Writes a plane of compressed rows and selects from it.",
    LayerMode.REINDEX: "Selects anew from an earlier layer's plane.",
    LayerMode.REUSE: "Reads the rows an earlier layer selected.",
}


def layer_records(anatomy: Anatomy) -> list[dict[str, object]]:
    """Every backbone layer, then every draft stage."""
    layers = (*anatomy.topology.layers, *anatomy.topology.drafts)
    extra = anatomy.ledger.units.extra_by_layer
    return [_record(anatomy.config, layer, extra) | {"read_by": _readers(layer, layers)} for layer in layers]


def _readers(layer: LayerSpec, layers: Sequence[LayerSpec]) -> str:
    """Layers that read what this one writes besides its window."""
    plane = ranges(other.layer_id for other in layers if other.kv_owner == layer.layer_id != other.layer_id)
    chosen = ranges(other.layer_id for other in layers if other.topk_owner == layer.layer_id != other.layer_id)
    found = [f"{plane} (its plane)" if plane else "", f"{chosen} (its selection)" if chosen else ""]
    return "; ".join(filter(None, found))


def _record(config: ModelConfig, layer: LayerSpec, extra: Mapping[int, int]) -> dict[str, object]:
    stage = layer.layer_id - config.num_layers
    return {
        "id": layer.layer_id,
        "label": f"mtp.{stage}" if layer.is_draft else str(layer.layer_id),
        "mode": layer.mode.value,
        "ratio": layer.ratio,
        "kv_owner": layer.kv_owner,
        "topk_owner": layer.topk_owner,
        "candidates": "makes" if layer.produces_candidates else "uses" if layer.bounded_by_candidates else None,
        "engram": layer.has_engram,
        "tap": layer.is_tap,
        "draft": layer.is_draft,
        "group": layer.group_start,
        "extra_parameters": extra.get(layer.layer_id, 0),
        "writes": _writes(config, layer),
        "reads": _reads(config, layer),
        "scores": _scores(config, layer),
    }


def _writes(config: ModelConfig, layer: LayerSpec) -> list[str]:
    channels = config.attention.head_dim
    found = [f"its own window: one row of {channels} per token"]
    if layer.is_draft:
        found = [f"its own window: one row of {channels} per token of the target, none of the block"]
    if layer.writes_plane:
        tokens = "token" if layer.ratio == 1 else f"{layer.ratio} tokens"
        found.append(f"the main plane: one row of {channels} per {tokens}")
        found.append(f"the index plane: one key of {config.indexer.head_dim} per {tokens}")
    if layer.scores:
        found.append(f"a selection: at most {config.indexer.topk} row numbers per token")
    if layer.produces_candidates:
        found.append(f"candidate blocks: at most {config.indexer.candidate_blocks} per token")
    return found


def _reads(config: ModelConfig, layer: LayerSpec) -> list[str]:
    window, topk = config.attention.window, config.indexer.topk
    found = [f"its own window: at most {window} rows"]
    if layer.is_draft:
        found.append(f"all {config.dspark.block_size} rows of the draft block, in both directions")
    if layer.ratio:
        whose = "its own plane" if layer.writes_plane else f"the plane of layer {layer.kv_owner}"
        found.append(f"{whose}: at most {topk} rows")
    if layer.mode is LayerMode.REUSE:
        found.append(f"the selection of layer {layer.topk_owner}")
    if layer.bounded_by_candidates:
        found.append(f"the candidate blocks of layer {config.indexer.candidate_source_layer_id}")
    return found


def _scores(config: ModelConfig, layer: LayerSpec) -> str:
    if not layer.scores:
        return "nothing"
    if layer.bounded_by_candidates:
        most = config.indexer.candidate_blocks * config.indexer.candidate_block_size
        return f"at most {most} rows of layer {layer.kv_owner}'s index plane"
    whose = "its own" if layer.writes_plane else f"layer {layer.kv_owner}'s"
    return f"every visible row of {whose} index plane"


def mode_records(anatomy: Anatomy) -> list[dict[str, object]]:
    """The four modes, those that no layer has among them; an example layer tells what each reads and writes."""
    layers = (*anatomy.topology.layers, *anatomy.topology.drafts)
    extra = anatomy.ledger.units.extra_by_layer
    records: list[dict[str, object]] = []
    for mode, meaning in MODES.items():
        own = [layer for layer in layers if layer.mode is mode]
        backbone = [layer.layer_id for layer in own if not layer.is_draft]
        records.append(
            {
                "mode": mode.value,
                "meaning": meaning,
                "num_layers": len(backbone),
                "num_drafts": len(own) - len(backbone),
                "layers": ranges(backbone),
                "extra_parameters": sorted({extra.get(layer_id, 0) for layer_id in backbone}),
                "bounded": any(layer.bounded_by_candidates for layer in own),
                "produces": any(layer.produces_candidates for layer in own),
            }
        )
    return records


def group_records(anatomy: Anatomy) -> list[dict[str, object]]:
    """The index groups in order."""
    records: list[dict[str, object]] = [
        {
            "layers": ranges(range(group.start, group.start + group.size)),
            "start": group.start,
            "ratio": group.ratio,
            "kv_owner": group.kv_owner,
            "topk_owner": group.topk_owner,
            "summary": group.summary,
            "draft": group.is_draft,
        }
        for group in anatomy.groups
    ]
    return records


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as in ``3-7, 9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(_run(run) for run in runs)


def _run(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
