"""Stands in for a Python process: the zygote forks one that runs the same command, and this one looks like it.

    python -I -S zygote_client.py SOCKET -c CODE ARGUMENTS...       or SOCKET FILE ARGUMENTS...

Its streams and whatever else a process inherits go to the forked process, signals are passed on, and the end is the
same: the status, or the signal.  What the zygote declines, because a forked process could not behave as a fresh one, is
run as a fresh one.  Imports little, for it runs once per command.
"""

import json
import os
import signal
import socket
import sys

SOCKET_ERROR = 70
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
LENGTH_BYTES = 4
DECLINED = b"declined"


def main() -> None:
    streams = [number for number in range(3) if is_open(number)]  # before a number is taken by the socket
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(sys.argv[1])
        except OSError:
            give_up()
        ignored = [number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN]
        ask(connection, streams, ignored, mask)
        for number in PASSED_ON:  # also those that are ignored here: the command may have come to handle them
            signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        answer = connection.recv(64)
    if answer == DECLINED:
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
    if not answer:
        give_up()
    end(int(answer))


def give_up() -> None:
    os.write(2, b"the zygote has gone\n")
    os._exit(SOCKET_ERROR)


def ask(connection: socket.socket, streams: list[int], ignored: list[int], mask: set[int]) -> None:
    umask = os.umask(0)
    os.umask(umask)
    request = {
        "arguments": sys.argv[2:],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "umask": umask,
        "ignored": [int(number) for number in ignored],
        "mask": [int(number) for number in mask],
        "streams": streams,
    }
    body = json.dumps(request).encode()
    socket.send_fds(connection, [len(body).to_bytes(LENGTH_BYTES, "big")], streams)
    connection.sendall(body)


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def end(status: int) -> None:
    """Ends as a process does whose `waitpid` tells this status."""
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) in PASSED_ON:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
