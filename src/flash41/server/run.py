"""The life of a server: listen, hand requests to an engine that is ready, and end without losing what was asked.

    start ──► listening ──SIGTERM, SIGINT──► draining ──► closed, status 0
                  └─────── engine ends ─────────────────► closed, status 1

Draining lets nobody in (503, and /ready says so), while open answers finish; what is still open when the grace time is
over ends with an error event.  A second signal ends the grace time at once.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from flash41.errors import ConfigError, complaint
from flash41.server.app import Application, create_app
from flash41.server.engine_client import EngineClient
from flash41.server.security import LARGEST_HEAD_BYTES
from flash41.server.settings import ServerSettings

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 2.0
"""Time for last bytes to leave, and for the engine's current step to end; a fifth of a shorter grace time."""
TICK_SECONDS = 0.05

Announce = Callable[[str], None]
"""Is told the URL when the server listens."""


class _Server(uvicorn.Server):
    """Leaves signals to this module: uvicorn would end the process by the signal it got, not with status 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ServerProcess:
    """One server from start to end."""

    def __init__(self, engine: EngineClient, settings: ServerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self.app: Application = create_app(engine, settings)
        self._has_died = False
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()

    def end(self) -> None:
        """Begins to drain; the second time, ends the grace time."""
        if self._ending.is_set():
            self._hurry.set()
        self._ending.set()

    def _died(self) -> None:
        self._has_died = True
        self._ending.set()
        self._hurry.set()

    async def run(self, announce: Announce) -> int:
        """Serves until a signal comes or the engine fails; the exit status of the process."""
        listener = listening(self._settings)
        with contextlib.closing(listener):
            await self._engine.start(self._died)
            server = _Server(config(self.app))
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.end)
            serving = asyncio.create_task(server.serve([listener]))
            try:
                announce(url(self._settings.host, listener))
                await asyncio.wait({serving, loop.create_task(self._ending.wait())}, return_when="FIRST_COMPLETED")
                await self._drain()
            finally:
                server.should_exit = True
                await serving
                self._engine.close()
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.remove_signal_handler(number)
        return int(self._has_died)

    async def _drain(self) -> None:
        gate, grace = self.app.context.gate, self._settings.grace_seconds
        closing = min(CLOSING_SECONDS, grace / 5)
        gate.close()
        logger.info("stopping: %d answers are open", gate.num_open)
        await self._until_empty(grace - 2 * closing, hurries=True)
        self._engine.give_up()  # what is still open ends with an error event
        await self._until_empty(CLOSING_SECONDS, hurries=False)
        if not await self._engine.stop(max(closing, TICK_SECONDS)):
            logger.warning("the engine is still computing a step and is cut off")

    async def _until_empty(self, seconds: float, *, hurries: bool) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.app.context.gate.num_open and not (hurries and self._hurry.is_set()):
                    await asyncio.sleep(TICK_SECONDS)


def listening(settings: ServerSettings) -> socket.socket:
    """A socket that listens at the settings' address; raises ConfigError where that cannot be."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        raise ConfigError(complaint("address", where, "one this machine has and nobody uses", str(error))) from error
    return listener


def url(host: str, listener: socket.socket) -> str:
    """Where a browser finds the server."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


def config(app: Application) -> uvicorn.Config:
    """How uvicorn is to serve the application: HTTP only, heads bounded, no log and no signals of its own."""
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        proxy_headers=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=LARGEST_HEAD_BYTES,
        timeout_graceful_shutdown=int(CLOSING_SECONDS),
    )


def serve(engine: EngineClient, settings: ServerSettings, announce: Announce) -> int:
    """Serves an engine until told to stop; the exit status of the process."""

    async def main() -> int:
        process = ServerProcess(engine, settings)
        gc.freeze()  # what is there now stays: searching it again and again for garbage would hold up all streams
        return await process.run(announce)

    return asyncio.run(main())
