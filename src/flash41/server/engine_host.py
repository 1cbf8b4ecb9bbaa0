"""The engine's process behind its first moment: open the model as told, compute, and say how it went.

    the model is refused   why, and status 1
    the loop fails         a line of log, and status 1; the other side sees the socket close
    `stop`                 status 0

Started by `engine_process`, by name; imported by nobody, as it loads tensors.
"""

import gc
import logging
import os
from collections.abc import Callable

from flash41.engine.llm import LLM
from flash41.errors import Flash41Error
from flash41.server import logs
from flash41.server.engine_loop import EngineLoop, model_facts
from flash41.server.engine_orders import ALONE, Orders
from flash41.server.messages import Opening, Ready, Report, ready_line, refusal_line, report_line

logger = logging.getLogger(__name__)

FAILED = 1


def main(orders: Orders) -> None:
    """Runs the process; never returns."""
    status = host(orders, opened)
    logging.shutdown()
    os._exit(status)  # an ending interpreter would pull the tensors from under threads that still compute


def opened(opening: Opening) -> LLM:
    """The model of an opening."""
    logs.set_up(as_json=opening.logs_json)
    return LLM(**opening.options)


def host(orders: Orders, open_model: Callable[[Opening], LLM]) -> int:
    """Opens a model as told and computes until told to stop; the exit status."""
    opening, connection = orders.opening(), orders.connection
    if opening is None:
        return ALONE

    def tell(report: Report) -> None:
        try:
            connection.sendall(report_line(report))
        except OSError:
            orders.leave(ALONE)

    try:
        llm = open_model(opening)
        loop = EngineLoop(llm, orders.inbox, tell)
        connection.sendall(ready_line(_ready(llm, opening, loop)))
    except (Flash41Error, OSError) as error:
        connection.sendall(refusal_line(error))
        return FAILED
    gc.freeze()  # the model stays: searching it for garbage takes as long as a few steps
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
