"""What one step will compute, in integers only: it can be printed, compared, and sent to other ranks as bytes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedImage:
    """An image of one request, as positions."""

    identity: bytes
    """Names the picture; whoever runs the plan has its rows under this name."""
    start: int
    """Position of its first row."""
    num_rows: int
    """Positions of its span, delimiters included."""

    @property
    def end(self) -> int:
        """Position behind its last row."""
        return self.start + self.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSpan:
    """The next rows of one request."""

    request_id: int
    """Whose rows."""
    slot: int
    """Where its state lives."""
    start: int
    """Position of the first row; `window_start` begins an empty slot."""
    ids: tuple[int, ...]
    """Token ids of the rows."""
    history: tuple[int, ...]
    """Token ids right before `start`, oldest first, as many as the n-gram order looks back (fewer at the beginning)."""
    samples: bool
    """Whether the last row's logits choose the next token (false inside a prompt)."""
    num_drafts: int = 0
    """The last ids that are drafts; every row from the one before them on chooses a token then."""
    pages: tuple[int, ...] = ()
    """Pages of the request, in order of the positions they hold, those of this span included."""
    window_start: int = 0
    """First position whose window rows exist; above 0 where the end of a cached prefix is replayed."""
    planes_end: int = 0
    """Position up to which the pages hold compressed rows already."""
    tail_start: int = 0
    """First position that layers behind the last owner compute; above 0 with bounded decoder replay."""
    images: tuple[PlannedImage, ...] = ()
    """Images of the request that reach into `history` or the rows, ascending; others may be among them."""

    @property
    def end(self) -> int:
        """Position behind the last row."""
        return self.start + len(self.ids)

    @property
    def num_choices(self) -> int:
        """Rows at the end whose logits choose tokens."""
        return 1 + self.num_drafts if self.samples else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMove:
    """A copy between a slot and an image of its state."""

    request_id: int
    """Whose state."""
    slot: int
    """Where it lives."""
    image: int
    """Slot of the arena of images."""
    position: int
    """Positions the state holds; a page boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEncoding:
    """A picture that the image encoder is shown before the forward."""

    identity: bytes
    """Name under which its rows are kept."""
    request_id: int
    """A request that shows it."""
    image_index: int
    """Which of that request's images it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """All spans of a step, in the order of their rows."""

    spans: tuple[PlannedSpan, ...]
    restores: tuple[ImageMove, ...] = ()
    """Images that slots take before the forward."""
    saves: tuple[ImageMove, ...] = ()
    """States that images take behind the forward."""
    forgets: tuple[bytes, ...] = ()
    """Pictures whose rows are given up first."""
    encodings: tuple[PlannedEncoding, ...] = ()
    """Pictures that are encoded then."""

    @property
    def num_rows(self) -> int:
        """Rows of the forward."""
        return sum(len(span.ids) for span in self.spans)
