"""The engine's process, from its first line to its last: open the model, compute, end with whoever started it.

    SIGINT, SIGTERM       nothing: whoever started it decides when open answers are finished, and says `stop`
    the socket closes     the end at once: whoever started it is gone, and nobody waits for anything any more
    the loop fails        a line of log, and status 1; the other side sees the socket close

Started by `engine_process`, by name, with the number of its socket; imported by nobody, as it loads tensors.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable

from flash41.engine.llm import LLM
from flash41.errors import Flash41Error
from flash41.server import logs
from flash41.server.engine_loop import EngineLoop, Inbox, model_facts
from flash41.server.messages import (
    Opening,
    Ready,
    Report,
    Stop,
    message_of,
    read_opening,
    read_order,
    ready_line,
    refusal_line,
    report_line,
)

logger = logging.getLogger(__name__)

FAILED = 1
ALONE = 2
"""Exit status when the other side went away."""

Leave = Callable[[int], object]
"""Ends the process with a status."""


def main(socket_number: int) -> None:
    """Runs the process; never returns."""
    keep_signals_away()
    with socket.socket(fileno=socket_number) as connection:
        status = host(connection, opened, os._exit)
    logging.shutdown()
    os._exit(status)  # an ending interpreter would pull the tensors from under threads that still compute


def keep_signals_away() -> None:
    """Signals that a terminal sends to all processes do nothing here.

    A handler and not SIG_IGN: compilers that this process starts would inherit the latter, and outlive Ctrl-C.
    """
    ending = (signal.SIGINT, signal.SIGTERM)
    for number in ending:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)  # blocked by whoever started it, until here


def opened(opening: Opening) -> LLM:
    """The model of an opening."""
    logs.set_up(as_json=opening.logs_json)
    return LLM(**opening.options)


def host(connection: socket.socket, open_model: Callable[[Opening], LLM], leave: Leave) -> int:
    """Opens a model as told over a connection and computes until told to stop; the exit status."""
    incoming = connection.makefile("rb")  # not closed here: that would wait for the thread that reads it
    first, inbox = incoming.readline(), Inbox()
    if not first:
        return ALONE

    def listen() -> None:
        with contextlib.suppress(OSError):
            for line in incoming:
                inbox.put(read_order(message_of(line)))
        leave(ALONE)
        inbox.put(Stop())

    def tell(report: Report) -> None:
        try:
            connection.sendall(report_line(report))
        except OSError:
            leave(ALONE)

    # From here on, also while a model is loaded, the end of the other side is seen at once.
    threading.Thread(target=listen, name="orders", daemon=True).start()
    opening = read_opening(message_of(first))
    try:
        llm = open_model(opening)
        loop = EngineLoop(llm, inbox, tell)
        connection.sendall(ready_line(_ready(llm, opening, loop)))
    except (Flash41Error, OSError) as error:
        connection.sendall(refusal_line(error))
        return FAILED
    return _computed(loop)


def _computed(loop: EngineLoop) -> int:
    try:
        loop.run()
    except Exception as error:
        logger.exception("the engine failed: %s", type(error).__name__)
        return FAILED
    return 0


def _ready(llm: LLM, opening: Opening, loop: EngineLoop) -> Ready:
    assert llm.codec is not None, "asked for here rather than at the first request: it may refuse the tokenizer"
    return Ready(
        facts=model_facts(llm, opening.names),
        directory=str(llm.directory),
        image_token_id=llm.config.tokens.image,
        stats=loop.stats,
    )
