"""How a forked process becomes one that looks freshly started, and runs its command as the main program.

What cannot be made to look so is declined: variables that libraries read when they are imported, options of the
interpreter, and values whose meaning is not known here.
"""

import atexit
import io
import json
import os
import signal
import socket
import sys
import threading
import types
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from helpers.zygote_client import LENGTH_BYTES

READ_AT_START = ("PYTHON", "OMP_", "KMP_", "GOMP_", "MKL_", "TORCH", "LC_", "LANG", "LD_", "MALLOC_", "TZ")
"""How names of variables begin that an interpreter or a library reads once, when it starts."""
UNDERSTOOD = ("PYTHONWARNINGS", "PYTHONUNBUFFERED", "PYTHONIOENCODING", "TORCHINDUCTOR_CACHE_DIR")
"""Those among them that a child obeys.  The last is read when something is compiled, not at the start; torch sets it in
every process in which an optimizer steps, this of the tests among them."""
STRICT = "error"
"""The one value of PYTHONWARNINGS that is understood; the zygote itself runs under it."""
FLUSH_FAILED = 120
"""Status of an interpreter whose output cannot be written at its end."""
STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is run, and what a process inherits from whoever starts it."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    umask: int
    ignored: list[int]
    """Numbers of signals that are ignored."""
    mask: list[int]
    """Numbers of signals that are blocked."""
    streams: list[int]
    """Which of 0, 1 and 2 are open."""


def received(client: socket.socket) -> tuple[Command, list[int]]:
    """What a client asks for, and its streams under numbers of this process."""
    length, streams, _, _ = socket.recv_fds(client, LENGTH_BYTES, len(STREAMS))
    body = b""
    while len(body) < int.from_bytes(length, "big"):
        body += client.recv(1 << 20)
    return Command(**json.loads(body)), streams


def declined(command: Command) -> bool:
    """Whether a forked process could behave otherwise than a fresh one."""
    if not command.arguments or (command.arguments[0].startswith("-") and command.arguments[0] != "-c"):
        return True
    if command.environment.get("PYTHONWARNINGS", STRICT) != STRICT:
        return True
    return read_at_start(command.environment) != read_at_start(os.environ)


def read_at_start(variables: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    return {
        name: value for name, value in variables.items() if name.startswith(READ_AT_START) and name not in UNDERSTOOD
    }


def become(command: Command, streams: list[int]) -> None:
    """Takes over everything that a process inherits; `streams` are closed under their old numbers."""
    os.setsid()  # signals come from the client alone
    for number in {*range(len(STREAMS))} - {*command.streams}:
        os.close(number)
    for number, stream in zip(command.streams, streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(command.directory)
    os.umask(command.umask)
    os.environ.clear()
    os.environ.update(command.environment)
    # The zygote may have been started with others ignored than the command.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in command.ignored else usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, command.mask)


def run(command: Command) -> NoReturn:
    """The command as the main program of this interpreter; ends as it does."""
    _settle_streams(command.streams)
    _settle_warnings()
    np.random.seed()  # `random` seeds itself anew in a child
    torch.default_generator.seed()
    for name in [name for name in sys.modules if name.partition(".")[0] == "helpers"]:
        del sys.modules[name]  # a program finds no module of the tests
    status = 0
    try:
        exec(_compiled(command.arguments), sys.modules["__main__"].__dict__)
    except SystemExit as request:
        status = _status(request)
    except KeyboardInterrupt as error:
        _tell(error)
        status = -signal.SIGINT
    except BaseException as error:
        _tell(error)
        status = 1
    _end(status)


def _compiled(arguments: list[str]) -> types.CodeType:
    """The program, once everything that belongs to it has its name."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.orig_argv = [sys.executable, *arguments]
    if arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        return compile(arguments[1], "<string>", "exec", dont_inherit=True)
    path = Path(arguments[0])
    sys.argv, sys.path[0] = list(arguments), str(path.resolve().parent)
    main.__file__ = str(path.absolute())
    return compile(path.read_bytes(), str(path.absolute()), "exec", dont_inherit=True)


def _status(request: SystemExit) -> int:
    if request.code is None or isinstance(request.code, int):
        return (request.code or 0) & 0xFF
    sys.stderr.write(f"{request.code}\n")
    return 1


def _tell(error: BaseException) -> None:
    trace = error.__traceback__ and error.__traceback__.tb_next  # without the frame of `run`
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _end(status: int) -> NoReturn:
    """What an interpreter does at its end, but for taking its modules apart, which costs more than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError as error:
            sys.stderr.write(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}\n")
            status = FLUSH_FAILED
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _settle_streams(numbers: list[int]) -> None:
    """What Python makes of 0, 1 and 2 when it starts."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    errors = errors or ("strict" if encoding else "")
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, (name, mode) in enumerate(STREAMS):
        before, stream = getattr(sys, f"__{name}__"), None
        if number in numbers:
            buffering = 0 if unbuffered and mode == "w" else -1
            binary = open(number, f"{mode}b", buffering=buffering, closefd=False)  # noqa: SIM115 -- until the end
            getattr(binary, "raw", binary).name = f"<{name}>"
            stream = io.TextIOWrapper(
                binary,
                encoding or before.encoding,
                before.errors if name == "stderr" else errors or before.errors,
                newline="\n",
                line_buffering=not unbuffered and (name == "stderr" or binary.isatty()),
                write_through=unbuffered,
            )
            stream.mode = mode
        for public in (name, f"__{name}__"):
            setattr(sys, public, stream)


def _settle_warnings() -> None:
    """Without PYTHONWARNINGS, takes back what the zygote was started with; other filters are those of libraries."""
    if "PYTHONWARNINGS" in os.environ:
        return
    sys.warnoptions.clear()
    warnings.filters.remove((STRICT, None, Warning, None, 0))  # type: ignore[attr-defined]
    warnings._filters_mutated()  # type: ignore[attr-defined]
