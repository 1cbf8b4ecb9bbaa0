"""Runs token ids through the model and keeps every named intermediate result.

The points carry the names of the golden manifest (``embed``, ``L2.index.selected``, ``final.norm`` ...), so that a
trace can be laid beside any other engine's, point by point.  With several chunks the rows are joined in order; what
grows with the context (``index.scores``, ``index.candidates``) is padded at the end with "not visible" (-inf, -1).
`ids` are the token ids as they were run.

With a draft, the block behind the last token follows: its anchor is the likeliest token of the last row.  Its points
have a row for each of its tokens, ``mtp<s>.context_row`` one for each row of context.

    ids, rows, selections, candidates     int32 (Engram rows int64 where they need it)
    everything else                       float32

A prompt with pictures has one placeholder id for each, widened here to the picture's span.  ``vision.*`` are points of
the last picture, as in the goldens; what every picture k was and became stands in ``image<k>/...``:

    grid                  width, height, rows and columns of patches, rows and columns of tokens, positions
    start, types          first position; what each position holds (0 START, 1 IMAGE, 2 NEWLINE, 3 END)
    patches, image.rows   values shown to the tower; rows of the span
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash41.chat.images import Picture
from flash41.engine.load import LoadedModel
from flash41.engine.pictures import encode, patch_values
from flash41.engine.plan import PlannedImage, PlannedSpan, StepPlan
from flash41.engine.prompt_images import widen
from flash41.errors import RequestError, complaint
from flash41.model.batch import Probe, Silent
from flash41.tools.points import MAIN_X, draft_point_names

Array = NDArray[Any]
Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""

PADDING = {"index.scores": -np.inf, "index.candidates": -1}
"""Points whose last dim grows with the context, and what fills it."""


@dataclass(slots=True)
class Recorder:
    """A probe that keeps the points matching any of its patterns."""

    patterns: Sequence[str] = ("*",)
    active: bool = True
    pieces: dict[str, list[Array]] = field(default_factory=dict)

    def __call__(self, point: str, value: Tensor) -> None:
        """Appends one chunk's rows of a point; a chunk that closes no group has none."""
        if len(value) and any(fnmatchcase(point, pattern) for pattern in self.patterns):
            self.pieces.setdefault(point, []).append(_array(value))

    def joined(self) -> dict[str, Array]:
        """Every point over all chunks."""
        return {point: _join(point, pieces) for point, pieces in self.pieces.items()}


@dataclass(slots=True)
class Only:
    """A probe that passes on the points of a list: a stage is a block and has more than other engines can show."""

    probe: Probe
    names: Collection[str]
    active: bool = True

    def __call__(self, point: str, value: Tensor) -> None:
        """Passes a listed point on."""
        if point in self.names:
            self.probe(point, value)


def _array(value: Tensor) -> Array:
    if value.is_floating_point():
        return value.float().numpy().copy()
    is_wide = value.numel() > 0 and int(value.max()) >= 2**31
    return value.to(torch.int64 if is_wide else torch.int32).numpy().copy()


def _join(point: str, pieces: list[Array]) -> Array:
    suffix = point.partition(".")[2]
    if suffix in PADDING:
        width = max(piece.shape[1] for piece in pieces)
        fill = PADDING[suffix]
        pieces = [np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=fill) for p in pieces]
    return np.concatenate(pieces)


def split(length: int, chunks: Sequence[int] | None) -> list[int]:
    """Chunk lengths that cover `length` tokens: the given ones, the last one repeated; one chunk if none are given."""
    if not chunks:
        return [length]
    if any(chunk <= 0 for chunk in chunks):
        raise RequestError(complaint("chunks", list(chunks), "lengths of at least 1"))
    lengths: list[int] = []
    left = length
    while left:
        lengths.append(min(left, chunks[min(len(lengths), len(chunks) - 1)]))
        left -= lengths[-1]
    return lengths


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Raises RequestError for no ids, and for ids outside a vocabulary."""
    if not ids:
        raise RequestError(complaint("token ids", list(ids), "at least one"))
    outside = [token for token in ids if not 0 <= token < vocab_size]
    if outside:
        raise RequestError(complaint("token ids", outside[:8], f"integers from 0 to {vocab_size - 1}"))


def trace(
    model: LoadedModel,
    ids: Sequence[int],
    chunks: Sequence[int] | None = None,
    points: Sequence[str] = ("*",),
    progress: Progress | None = None,
    draft: bool = False,
    pictures: Sequence[Picture] = (),
) -> dict[str, Array]:
    """`ids` int32 [T], `logits` FP32 [T, vocab], ``trace/<point>`` for every matching point, ``image<k>/...``.

    `draft` adds the points of a draft block behind the last token.

    With pictures the model must have been opened with its image encoder.  RequestError for no ids, ids outside the
    vocabulary, chunk lengths below 1, not as many placeholders as pictures, or points of draft stages that were not
    loaded.
    """
    check_ids(ids, model.config.vocab_size)
    wants_main_x = model.config.dspark.num_stages > 0 and any(fnmatchcase(MAIN_X, pattern) for pattern in points)
    if model.drafter is None and (draft or wants_main_x):
        stages = "none in this checkpoint" if model.config.dspark.num_stages == 0 else "not loaded"
        raise RequestError(complaint("draft stages", stages, "a model loaded with its draft stages"))
    widened, images = widen(ids, pictures, model.config.tokens.image)
    recorder = Recorder(points)
    rows = encoded(model, pictures, recorder)
    taps = []
    logits = []
    runner = model.runner(1, len(widened), drafts=draft)
    start = 0
    for length in split(len(widened), chunks):
        plan = _plan(widened, start, length, model.config.engram.max_ngram - 1, images)
        output = runner.run(runner.stage(plan, rows).all_logits(), recorder)
        logits.append(output.logits.numpy())
        taps.append(output.taps)
        start += length
        if progress is not None:
            progress(start, len(widened))
    if model.drafter is not None and wants_main_x:
        recorder(MAIN_X, model.drafter.entrance(torch.cat(taps)))
    if draft:
        runner.draft({0: int(logits[-1][-1].argmax())}, probe=Only(recorder, draft_point_names(model.config)))
    traced = {f"trace/{point}": value for point, value in recorder.joined().items()}
    shown = _shown(pictures, images, rows)
    own = {"ids": np.array(widened, dtype=np.int32), "logits": np.concatenate(logits)}
    return {**own, **traced, **shown}


def encoded(model: LoadedModel, pictures: Sequence[Picture], probe: Probe) -> dict[bytes, Tensor]:
    """Rows of every picture by its identity, each encoded once; the probe listens to the last one."""
    rows: dict[bytes, Tensor] = {}
    last = pictures[-1].identity if pictures else None
    for picture in pictures:
        if picture.identity not in rows:
            assert model.encoder is not None, "the model was opened without its image encoder"
            listener = probe if picture.identity == last else Silent()
            rows[picture.identity] = encode(model.encoder, picture, listener)
    return rows


def _shown(
    pictures: Sequence[Picture], images: Sequence[PlannedImage], rows: Mapping[bytes, Tensor]
) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for number, (picture, image) in enumerate(zip(pictures, images, strict=True)):
        plan = picture.plan
        patches, tokens = (plan.grid_height, plan.grid_width), (plan.token_rows, plan.token_columns)
        grid = (plan.width, plan.height, *patches, *tokens, plan.num_tokens)
        arrays |= {
            f"image{number}/grid": np.array(grid, dtype=np.int32),
            f"image{number}/start": np.array([image.start], dtype=np.int32),
            f"image{number}/types": np.array(plan.types, dtype=np.int32),
            f"image{number}/patches": _array(patch_values(picture)),
            f"image{number}/image.rows": _array(rows[picture.identity]),
        }
    return arrays


def _plan(ids: Sequence[int], start: int, length: int, look_back: int, images: tuple[PlannedImage, ...]) -> StepPlan:
    span = PlannedSpan(
        request_id=0,
        slot=0,
        start=start,
        ids=tuple(ids[start : start + length]),
        history=tuple(ids[max(0, start - look_back) : start]),
        samples=True,
        images=images,
    )
    return StepPlan(spans=(span,))
