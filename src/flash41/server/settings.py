"""How a server is to behave; everything a user may choose besides the engine."""

from dataclasses import dataclass
from pathlib import Path

from flash41.config.architecture import ModelConfig

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits and manners of one server."""

    host: str = "127.0.0.1"
    """Address to listen at."""
    port: int = 8000
    """Port to listen at; 0 takes a free one."""
    api_keys: tuple[str, ...] = ()
    """Keys of which one must be shown; none opens the server to whoever reaches it."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names accepted besides the bound one, `localhost` and plain addresses."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may call the server from a browser."""
    thinks_by_default: bool = True
    """Whether a conversation that says nothing about it reasons first."""
    hosted_sampling: bool = False
    """Whether temperature and top_p are clamped as the hosted service does."""
    max_waiting: int = 256
    """Answers that may wait for the engine besides those it computes side by side."""
    request_timeout_seconds: float = 3600.0
    """Longest time one request may take."""
    body_timeout_seconds: float = 30.0
    """Longest time a request may take to arrive."""
    keep_alive_seconds: float = 15.0
    """Silence of a stream after which a comment is sent."""
    stall_seconds: float = 60.0
    """Time a client may leave a stream unread before it counts as gone."""
    max_body_bytes: int = 32 * MEBIBYTE
    """Largest body of a request."""
    max_choices: int = 8
    """Largest `n`."""
    max_prompts: int = 64
    """Prompts of one completion request."""
    image_root: Path | None = None
    """Folder whose files may be named as images; none where no local file may."""
    image_http: bool = False
    """Whether images are fetched from other servers."""
    image_fetch_seconds: float = 10.0
    """Longest time for fetching one image."""
    max_picture_bytes: int = 512 * MEBIBYTE
    """Bytes of the patches of pictures in all open answers."""
    grace_seconds: float = 30.0
    """Time that open requests have to finish when the server is told to stop."""
    model_config: ModelConfig | None = None
    """What the anatomy tab draws; without it the tab says that it does not know."""
