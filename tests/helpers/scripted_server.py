"""A scripted application behind a real socket, in a thread of this process."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import uvicorn

from flash41.server.run import config, listening, url
from flash41.server.settings import ServerSettings
from helpers.serving import Scripted


@contextlib.contextmanager
def listening_at(scripted: Scripted) -> Iterator[str]:
    """The address of a server for as long as the context lasts."""
    server = uvicorn.Server(config(scripted.app))
    with listening(ServerSettings(port=0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
        thread.start()
        try:
            yield url("127.0.0.1", listener)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "a connection was left open"
