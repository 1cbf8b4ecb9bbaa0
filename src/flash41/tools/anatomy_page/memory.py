"""PAGE and STATE of every pool as lists of segments whose bytes add up to the whole.

What is aligned away is a segment too, so that a drawing to scale has no unexplained gap.  spec: cache.md section 2.
"""

from flash41.cache.budget import capacity_statement
from flash41.cache.geometry import OwnerGeometry, PoolGeometry
from flash41.tools.anatomy import Anatomy

Segment = dict[str, object]

STATE_WORDS = {
    "window": "window rings",
    "compress_kv": "open groups, values",
    "compress_score": "open groups, gates",
    "cursor": "cursor",
}
LENGTHS = (1, 1024, 8192, 131072, 1048576)
"""Tokens of the requests whose bytes are listed, as far as the model goes."""


def memory(anatomy: Anatomy) -> dict[str, object]:
    """Every pool, and the rules that those not shown break."""
    return {
        "block_size": anatomy.cache.block_size,
        "pools": [_pool(geometry, anatomy.cache.max_positions) for geometry in anatomy.cache.geometries],
        "faults": list(anatomy.cache.faults),
    }


def _pool(geometry: PoolGeometry, max_positions: int) -> dict[str, object]:
    lengths = sorted({min(length, max_positions) for length in LENGTHS})
    rate = geometry.bytes_per_token
    return {
        "main": geometry.pool.main.value,
        "index": geometry.pool.index.value,
        "draft_tokens": geometry.draft_tokens,
        "page_bytes": geometry.page_bytes,
        "state_bytes": geometry.state_bytes,
        "image_bytes": geometry.image_bytes,
        "bytes_per_token": rate.numerator if rate.denominator == 1 else float(rate),
        "statement": capacity_statement(geometry),
        "page": _page(geometry),
        "state": _state(geometry),
        "requests": [{"num_tokens": length, "bytes": geometry.request_bytes(length)} for length in lengths],
    }


def _page(geometry: PoolGeometry) -> list[Segment]:
    main = [_main(geometry, owner) for owner in geometry.owners]
    index = [_index(geometry, owner) for owner in geometry.owners]
    used = sum(owner.main_bytes for owner in geometry.owners)
    return [*main, *_padding(geometry.page_main_bytes - used), *index]


def _main(geometry: PoolGeometry, owner: OwnerGeometry) -> Segment:
    rows = f"{owner.rows_per_page} rows of {geometry.main_row_bytes} B"
    return _segment(f"main rows, layer {owner.layer_id}", owner.main_bytes, f"{rows}, ratio {owner.ratio}", "main")


def _index(geometry: PoolGeometry, owner: OwnerGeometry) -> Segment:
    rows = f"{owner.rows_per_page} keys of {geometry.index.row_bytes} B"
    return _segment(f"index keys, layer {owner.layer_id}", owner.index_bytes, f"{rows}, ratio {owner.ratio}", "index")


def _state(geometry: PoolGeometry) -> list[Segment]:
    segments, end = [], 0
    for field in geometry.state_fields:
        segments += _padding(field.offset_bytes - end)
        shape = " x ".join(map(str, field.shape))
        segments.append(_segment(STATE_WORDS[field.name], field.num_bytes, f"[{shape}]", field.name))
        end = field.offset_bytes + field.num_bytes
    segments += _padding(geometry.state_bytes - end)
    segments[0]["stripes"] = geometry.num_layers
    segments[0]["note"] = (
        f"{geometry.num_layers} layers, {geometry.window_ring} rows of {geometry.window_row_bytes} B each"
    )
    return segments


def _padding(num_bytes: int) -> list[Segment]:
    return [_segment("alignment", num_bytes, "unused", "padding")] if num_bytes else []


def _segment(label: str, num_bytes: int, note: str, kind: str) -> Segment:
    return {"label": label, "bytes": num_bytes, "note": note, "kind": kind}
