"""A request on its way through the engine: where its state lives and how much of it is computed."""

from dataclasses import dataclass

from flash41.cache.pages import PageTable
from flash41.engine.plan import PlannedImage
from flash41.engine.request import Request


@dataclass(slots=True)
class Running:
    """An admitted request."""

    request: Request
    slot: int
    table: PageTable
    num_computed: int = 0
    """Positions whose rows its slot has; less than its table holds while a cached prefix is replayed."""
    window_start: int = 0
    """First position whose window rows its slot has."""
    planes_end: int = 0
    """Positions whose compressed rows its pages held when it began, where these were not resumed from an image."""

    drafts: tuple[int, ...] | None = ()
    """Drafts for the positions behind its newest token; None where nobody has been asked for any yet."""

    def ids(self, start: int, end: int) -> tuple[int, ...]:
        """Token ids at positions start .. end-1 of prompt and answer; nothing else of a long request is copied."""
        request, cut = self.request, len(self.request.prompt_ids)
        return (*request.prompt_ids[start:end], *request.output_ids[max(0, start - cut) : max(0, end - cut)])

    def images(self, start: int, end: int) -> tuple[PlannedImage, ...]:
        """Images of the request with positions among start .. end-1."""
        planned = (image.planned for image in self.request.images)
        return tuple(image for image in planned if image.start < end and image.end > start)

    @property
    def num_known(self) -> int:
        """Token ids of prompt and answer so far."""
        return self.request.num_known

    @property
    def num_missing(self) -> int:
        """Known ids whose rows are not computed yet; 1 for a request that awaits its next token."""
        return self.num_known - self.num_computed

    def keep(self, num_computed: int) -> None:
        """Its slot has that many positions from now on; room for drafts behind them is given back."""
        self.num_computed = num_computed
        self.table.trim(num_computed)

    def growth(self, length: int) -> int:
        """Tokens that its table lacks for `length` more computed ones."""
        return max(0, self.num_computed + length - self.table.num_tokens)

    @property
    def pages_missing(self) -> int:
        """Free pages that its known ids still need."""
        return self.table.pages_needed(self.num_known - self.table.num_tokens)
