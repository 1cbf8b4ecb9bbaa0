"""An engine behind a real connection, in a thread of this process: its model can be looked at, and broken."""

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence

from flash41.engine.llm import LLM
from flash41.server.engine_client import EngineClient
from flash41.server.engine_host import host
from flash41.server.engine_orders import Orders
from flash41.server.messages import Lines, Opening, opening_line, read_answer


class ThreadWorker:
    """The thread that computes, in the place of a process."""

    def __init__(self, llm: LLM, connection: socket.socket) -> None:
        self.statuses: list[int] = []
        self.left: list[int] = []
        """Statuses with which a process would have ended itself."""
        self._llm = llm
        self._connection = connection
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def wait(self, timeout_seconds: float) -> bool:
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        status = host(Orders(self._connection, self.left.append), lambda _: self._llm)
        self._connection.shutdown(socket.SHUT_RDWR)
        self.statuses.append(status)


@contextlib.contextmanager
def engine_over(llm: LLM, names: Sequence[str] = ("m",)) -> Iterator[tuple[EngineClient, ThreadWorker]]:
    """A client of `llm`, and the thread behind it, which ends with the context; what it left open is aborted."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker, lines = ThreadWorker(llm, theirs), Lines()
        ours.sendall(opening_line(Opening(options={}, names=tuple(names), logs_json=False)))
        messages = list[list[object]]()
        while not messages:
            messages += lines.feed(ours.recv(65536))
        try:
            yield EngineClient(ours, read_answer(messages[0]), worker), worker
        finally:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            assert worker.wait(30), "the engine goes on"
            for request_id in range(llm._next_id):
                llm.engine.abort(request_id)
            assert llm.engine.num_unfinished == 0
