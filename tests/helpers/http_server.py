"""A scripted application on a real port of this process, for clients that need one."""

import contextlib
import threading
import time
from collections.abc import Iterator

import uvicorn

from flash41.server.app import Application
from flash41.server.run import config, listening
from flash41.server.settings import ServerSettings

PATIENCE_SECONDS = 20


@contextlib.contextmanager
def on_port(app: Application) -> Iterator[str]:
    """The address at which `app` answers while the context lasts."""
    listener = listening(ServerSettings(port=0))
    server = uvicorn.Server(config(app))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        listener.close()
        assert not thread.is_alive()
