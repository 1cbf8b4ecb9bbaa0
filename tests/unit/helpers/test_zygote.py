"""A forked command is told from a fresh process by nothing but its speed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.command_line import PROGRAM, environment
from helpers.server_process import is_gone
from helpers.zygote import CLIENT, forked_python
from helpers.zygote_child import read_at_start
from helpers.zygote_client import SOCKET_ERROR

PATIENCE_SECONDS = 60
PYTHONS = pytest.mark.parametrize("python", [lambda: [sys.executable], forked_python], ids=["fresh", "forked"])
FORKED = "import sys; print('torch' in sys.modules)"
SEEN = """
import json, locale, os, random, signal, sys, threading, warnings
print(json.dumps({
    "arguments": sys.argv, "path": sys.path, "main": [__name__, sorted(name for name in globals() if name[1] != "_")],
    "directory": os.getcwd(), "environment": dict(os.environ), "umask": os.umask(0),
    "files": [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")],
    "streams": [[stream.encoding, stream.errors, stream.mode, stream.name, stream.line_buffering, stream.write_through,
                 stream.newlines] for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "signals": [str(signal.getsignal(number)) for number in signal.valid_signals() if number not in (9, 19)],
    "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "threads": threading.active_count(), "leads": os.getsid(0) != os.getppid(),
    "warnoptions": sys.warnoptions, "original": sys.orig_argv,
    "helpers": "helpers" in sys.modules,
}))
"""


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    given = {"env": environment(), "timeout": PATIENCE_SECONDS, "capture_output": True} | options
    return subprocess.run(command, text=True, check=False, **given)


def both() -> list[list[str]]:
    return [[sys.executable], forked_python()]


def forked(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return run([*forked_python(), "-c", code, *arguments], **options)


def test_a_forked_command_does_not_import_what_is_there() -> None:
    assert forked(FORKED).stdout == "True\n"
    assert run([sys.executable, "-c", FORKED]).stdout == "False\n"


def test_what_torch_sets_where_an_optimizer_steps_does_not_end_forking(tmp_path: Path) -> None:
    assert forked(FORKED, env=environment() | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}).stdout == "True\n"


@pytest.mark.parametrize(
    "variables", [{}, {"PYTHONWARNINGS": "error", "ONE": "1 ü"}, {"PYTHONUNBUFFERED": "", "PYTHONIOENCODING": "ascii"}]
)
def test_a_command_sees_what_a_fresh_process_sees(variables: dict[str, str], tmp_path: Path) -> None:
    options = {"cwd": tmp_path, "env": environment() | variables}
    fresh, other = (json.loads(run([*python, "-c", SEEN, "a", "--b"], **options).stdout) for python in both())
    assert other == fresh


def test_a_file_is_run_with_its_own_folder_first_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7")
    (tmp_path / "program.py").write_text("import sys, beside; print(sys.argv, __file__, __name__, beside.value)")
    fresh, other = (run([*python, str(tmp_path / "program.py"), "x"]).stdout for python in both())
    assert other == fresh != ""


@PYTHONS
@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("import sys; sys.exit(-1)", 255, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("1 +", 1, "SyntaxError: invalid syntax\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("import atexit, sys; atexit.register(lambda: sys.stderr.write('end')); sys.exit(2)", 2, "end"),
        ("import threading; threading.Timer(0.1, lambda: __import__('os').write(2, b'late')).start()", 0, "late"),
        ("print('x' * 9)", 120, "No space left on device"),
    ],
)
def test_it_ends_as_a_fresh_process(python: Any, code: str, status: int, said: str) -> None:
    env = {**environment(), "PYTHONUNBUFFERED": ""}
    with Path("/dev/full" if status == 120 else os.devnull).open("w") as stdout:
        found = run([*python(), "-c", code], stdout=stdout, stderr=subprocess.PIPE, capture_output=False, env=env)
    assert found.returncode == status
    assert said in found.stderr
    assert bool(said) == bool(found.stderr)


def test_a_traceback_begins_with_the_program() -> None:
    fresh, other = (run([*python, "-c", "def f(): 1 / 0\nf()"]).stderr.splitlines() for python in both())
    assert other[0] == fresh[0]
    assert other[-1] == fresh[-1]
    assert not any("zygote" in line for line in other)


def test_streams_are_those_of_whoever_calls() -> None:
    copying = "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.stderr.write('told')"
    found = forked(copying, input="text\n" * 50_000)
    assert (found.stdout, found.stderr) == ("TEXT\n" * 50_000, "told")


def test_closed_streams_stay_closed() -> None:
    command = [*forked_python(), "-c", "import sys; sys.stderr.write(str([sys.stdin, sys.stdout]))"]
    found = run(["sh", "-c", 'exec "$@" <&- >&-', "sh", *command])
    assert found.stderr == "[None, None]"


def test_commands_of_a_pipe_run_at_the_same_time() -> None:
    line = '"$@" -c "print(5)" | "$@" -c "print(int(input()) + 1)" | "$@" -c "print(int(input()) + 1)"'
    assert run(["bash", "-c", line, "bash", *forked_python()]).stdout == "7\n"


def test_nothing_leaks_from_one_command_to_the_next(tmp_path: Path) -> None:
    leaving = f"""
import flash41.version, os, random, signal, sys, torch, warnings
flash41.version.__version__ = sys.left = os.environ["LEFT"] = "behind"
os.chdir({str(tmp_path)!r}); os.umask(0o77); signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.path.append("behind"); random.seed(1); torch.manual_seed(1); torch.set_num_threads(2)
warnings.simplefilter("ignore"); os.open(os.devnull, os.O_RDONLY)
"""
    before, left, after = forked(SEEN), forked(leaving), forked(SEEN)
    assert (left.returncode, left.stderr) == (0, "")
    assert after.stdout == before.stdout != ""
    assert forked("import flash41.version, sys; print(flash41.version.__version__, hasattr(sys, 'left'))").stdout == (
        forked("import flash41.version; print(flash41.version.__version__, False)").stdout
    )


def test_every_command_draws_other_random_numbers() -> None:
    drawing = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"
    first, second = (forked(drawing).stdout.split() for _ in range(2))
    assert len({*first, *second}) == 6


def test_a_command_may_compute_in_several_threads() -> None:
    computing = (
        "import os, torch; torch.set_num_threads(2); a = torch.ones(1 << 20).exp().sum().item(); "
        "print(a > 0, len(os.listdir('/proc/self/task')) > 1)"
    )
    assert forked(computing).stdout == "True True\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(number: signal.Signals) -> None:
    code = (
        f"import signal, sys, time; signal.signal({int(number)}, lambda *_: sys.exit(7)); print('ready', flush=True)\n"
        "while True: time.sleep(0.01)"
    )
    assert ended_by(code, number) == 7
    assert ended_by("import time; print('ready', flush=True); time.sleep(60)", number) == -number


def ended_by(code: str, number: int) -> int:
    # Whoever runs the tests may ignore a signal, as nohup does.
    command = ["env", f"--default-signal={signal.Signals(number).name.removeprefix('SIG')}"]
    command += [*forked_python(), "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        return process.wait(PATIENCE_SECONDS)


def test_a_signal_that_was_ignored_reaches_a_command_that_came_to_handle_it() -> None:
    code = (
        "import signal, sys, time; signal.signal(1, lambda *_: sys.exit(7)); print('ready', flush=True)\ntime.sleep(60)"
    )
    command = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *forked_python(), "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE_SECONDS) == 7


def test_an_ignored_signal_stays_ignored() -> None:
    telling = "import signal; print(*(signal.getsignal(number) == signal.SIG_IGN for number in (1, 2, 15)))"
    for python in both():
        for declined in ({}, {"PYTHONHASHSEED": "1"}):
            variables = environment() | declined
            found = run(["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", *python, "-c", telling], env=variables)
            assert found.stdout == "True True False\n"


def test_who_is_killed_takes_the_command_along() -> None:
    command = [*forked_python(), "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    assert is_gone(pid, PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["-W", "ignore", "-c", FORKED], {}),
        (["-c", FORKED], {"PYTHONWARNINGS": "ignore"}),
        (["-c", FORKED], {"OMP_NUM_THREADS": "3"}),
        (["-c", FORKED], {"PYTHONPATH": "/nowhere"}),
    ],
)
def test_what_is_settled_at_the_start_is_run_by_a_fresh_process(
    arguments: list[str], variables: dict[str, str]
) -> None:
    found = run([*forked_python(), *arguments], env=environment() | variables)
    assert (found.stdout, found.stderr) == ("False\n", "")


def test_warnings_are_errors_where_they_are_to_be() -> None:
    code = "import warnings; warnings.warn('w'); print('after')"
    assert forked(code).stdout == "after\n"
    strict = forked(code, env={**environment(), "PYTHONWARNINGS": "error"})
    assert (strict.returncode, strict.stdout) == (1, "")


def test_the_program_runs() -> None:
    assert forked(PROGRAM, "inspect").returncode == 2


def test_without_a_zygote_a_command_fails_and_says_so(tmp_path: Path) -> None:
    found = run([sys.executable, "-I", "-S", str(CLIENT), str(tmp_path / "nobody"), "-c", "pass"])
    assert found.returncode == SOCKET_ERROR
    assert found.stderr == "the zygote has gone\n"


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    code = (
        "import os, subprocess; from helpers.zygote import forked_python\n"
        "telling = [*forked_python(), '-c', 'import os; print(os.getppid())']\n"
        "print(subprocess.check_output(telling, text=True), flush=True); os.kill(os.getpid(), 9)"
    )
    env = {**environment(), "TMPDIR": str(tmp_path)}  # where its socket stays behind
    env["PYTHONPATH"] += f":{CLIENT.parents[1]}"
    found = run([sys.executable, "-c", code], env=env)
    assert found.returncode == -signal.SIGKILL
    assert is_gone(int(found.stdout), PATIENCE_SECONDS)


def test_variables_that_matter_only_at_the_start_are_known() -> None:
    known = read_at_start({"PYTHONPATH": "a", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error", "HOME": "b"})
    assert known == {"PYTHONPATH": "a", "OMP_NUM_THREADS": "1"}
