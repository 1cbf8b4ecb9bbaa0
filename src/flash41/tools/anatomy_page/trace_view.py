"""What really happened to a token, token by token, as the page draws it: bounded, and saying what was left out.

    tokens    at most 64 around the chosen one, and no more than fit into 6 MB
    rows      at most 512 selected rows per scorer, the best; blocks as runs of neighbours

Numbers are rounded to four digits; who needs all of them has the trace.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flash41.config.architecture import ModelConfig
from flash41.config.topology import LayerSpec, Topology
from flash41.errors import RequestError, complaint
from flash41.tools.anatomy_page.trace_file import DRAFT, LOGITS, TraceFile
from flash41.tools.comparison.files import Array

MOST_TOKENS = 64
MOST_BYTES = 6_000_000
MOST_ROWS = 512
MOST_RUNS = 512
NUM_BEST = 5

Text = Callable[[int], str | None]
"""Spells a token id, or cannot."""
Record = dict[str, object]


def trace_view(
    trace: TraceFile, config: ModelConfig, topology: Topology, text: Text, chosen: int | None = None
) -> Record:
    """The trace as JSON values; `chosen` is the token that is shown first, the last one by default.

    Raises RequestError for a token that the trace does not have.
    """
    count = trace.num_tokens
    if chosen is not None and not 0 <= chosen < count:
        raise RequestError(complaint("token of the trace", chosen, f"a position from 0 to {count - 1}"))
    first = count - 1 if chosen is None else chosen
    kept: dict[int, Record] = {}
    left = MOST_BYTES
    for position in sorted(range(count), key=lambda position: (abs(position - first), position))[:MOST_TOKENS]:
        record = _token(trace, config, topology, position)
        left -= len(json.dumps(record, separators=(",", ":")))
        if left < 0 and kept:
            break
        kept[position] = record
    tokens = [kept[position] for position in sorted(kept)]
    return {
        "num_tokens": count,
        "chosen": first,
        "tokens": tokens,
        "texts": _texts(trace, tokens, text),
        "ids": None if trace.ids is None else trace.ids[: MOST_ROWS * 16].tolist(),
        "missing": list(trace.missing),
        "notes": _notes(len(kept), count, tokens),
        "draft": _draft(trace, text),
    }


def _notes(num_kept: int, count: int, tokens: Sequence[Record]) -> list[str]:
    notes = []
    if num_kept < count:
        notes.append(f"{num_kept} of {count} tokens are in this page, those around the chosen one; --token moves them.")
    if any(layer.get("more") for token in tokens for layer in _layers(token)):
        notes.append(f"Of selections longer than {MOST_ROWS} rows the best {MOST_ROWS} are in this page.")
    return notes


def _layers(token: Record) -> Sequence[dict[str, Any]]:
    layers = token["layers"]
    assert isinstance(layers, list), type(layers)
    return layers


def _token(trace: TraceFile, config: ModelConfig, topology: Topology, position: int) -> Record:
    return {
        "position": position,
        "window": [max(0, position - config.attention.window + 1), position],
        "best": _best(trace, position),
        "next": _next(trace, position),
        "layers": [_layer(trace, layer, position) for layer in topology.layers],
    }


def _best(trace: TraceFile, position: int) -> list[list[object]] | None:
    """The likeliest next tokens: id, logit, probability at temperature 1."""
    if LOGITS not in trace.points:
        return None
    logits = trace.points[LOGITS][position].astype(np.float64)
    order = np.argsort(-logits, kind="stable")[:NUM_BEST]
    weights = np.exp(logits - logits.max())
    return [[int(i), rounded(logits[i]), rounded(weights[i] / weights.sum())] for i in order]


def _next(trace: TraceFile, position: int) -> list[object] | None:
    """The token that really follows: id and its rank, 1 for the likeliest."""
    if LOGITS not in trace.points or trace.ids is None or position + 1 >= trace.num_tokens:
        return None
    logits, token = trace.points[LOGITS][position], int(trace.ids[position + 1])
    if not 0 <= token < len(logits):
        return None
    return [token, int((logits > logits[token]).sum()) + 1]


def _layer(trace: TraceFile, layer: LayerSpec, position: int) -> Record:
    """Only what the trace has; keys are short, as they stand in the page for every layer of every token."""
    record: Record = {}
    name = f"L{layer.layer_id}."

    def row(point: str) -> Array | None:
        array = trace.points.get(name + point)
        return None if array is None else array[position]

    for key, point in (
        ("ap", "attn.pre"),
        ("ao", "attn.post"),
        ("ac", "attn.comb"),
        ("fp", "ffn.pre"),
        ("fo", "ffn.post"),
        ("fc", "ffn.comb"),
        ("w", "router.weights"),
        ("gate", "engram.gate"),
    ):
        values = row(point)
        if values is not None:
            record[key] = [rounded(value) for value in values.reshape(-1)]
    for key, point in (("e", "router.ids"), ("rows", "engram.rows")):
        values = row(point)
        if values is not None:
            record[key] = values.tolist()
    stream = row("resid.in")
    if stream is not None:
        record["rms"] = [rounded(value) for value in np.sqrt((stream.astype(np.float64) ** 2).mean(-1))]
    _add_selection(record, row, layer, position)
    return record


def _add_selection(record: Record, row: Callable[[str], Array | None], layer: LayerSpec, position: int) -> None:
    if not layer.scores:
        return
    visible = (position + 1) // layer.ratio
    record["n"] = visible
    selected, scores, blocks = row("index.selected"), row("index.scores"), row("index.candidates")
    if selected is not None:
        chosen = selected[selected >= 0]
        own = None if scores is None or (len(chosen) and int(chosen.max()) >= len(scores)) else scores
        if len(chosen) > MOST_ROWS:
            record["more"] = len(chosen) - MOST_ROWS
            best = np.argsort(-own[chosen], kind="stable") if own is not None else np.arange(len(chosen))[::-1]
            chosen = np.sort(chosen[best[:MOST_ROWS]])
        record["sel"] = chosen.tolist()
        if own is not None:
            record["sco"] = [rounded(value) for value in own[chosen]]
            record["cut"] = _cut(own[:visible], selected[selected >= 0])
    if blocks is not None:
        runs = _runs(blocks[blocks >= 0].tolist())
        record["runs"] = runs[:MOST_RUNS]
        record["blocks"] = int((blocks >= 0).sum())


def _cut(scores: Array, chosen: Array) -> object:
    """The best score that was left out, None where every row that could be chosen was."""
    left = np.delete(scores, chosen[chosen < len(scores)])
    left = left[np.isfinite(left)]
    return rounded(left.max()) if len(left) else None


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """First block and number of blocks of every run of neighbours."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return runs


def _draft(trace: TraceFile, text: Text) -> list[list[object]] | None:
    """Drafted ids, their text, and the chance of each by the confidence head."""
    if any(point not in trace.points for point in DRAFT):
        return None
    ids, logits = (trace.points[point] for point in DRAFT)
    return [
        [int(i), text(int(i)), rounded(1 / (1 + math.exp(-min(max(float(c), -60.0), 60.0))))]
        for i, c in zip(ids, logits, strict=True)
    ]


def _texts(trace: TraceFile, tokens: Sequence[Record], text: Text) -> dict[str, str]:
    """Spelling of every id that the page names."""
    ids = set() if trace.ids is None else {int(i) for i in trace.ids[: MOST_ROWS * 16]}
    for token in tokens:
        best = token["best"]
        if isinstance(best, list):
            ids |= {entry[0] for entry in best}
    found = ((i, text(i)) for i in sorted(ids))
    return {str(i): spelled for i, spelled in found if spelled is not None}


def rounded(value: float) -> float | None:
    """Four digits; None for what JSON cannot say."""
    number = float(value)
    return float(f"{number:.4g}") if math.isfinite(number) else None
