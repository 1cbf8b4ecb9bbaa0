"""What the routes of one application share."""

from dataclasses import dataclass

from flash41.server.conversations import ConversationReader
from flash41.server.limits import Gate
from flash41.server.metrics import Metrics
from flash41.server.pictures import PictureDesk
from flash41.server.service import Service
from flash41.server.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One application."""

    service: Service
    settings: ServerSettings
    gate: Gate
    metrics: Metrics
    reader: ConversationReader
    pictures: PictureDesk
    started: int
    """When the application was made, seconds since 1970."""
