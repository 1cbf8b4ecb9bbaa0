"""The command `flash41`: one sub-command per file of this folder.

What a user, a file or a request can cause ends as one line on standard error and exit status 1; wrong usage ends with
status 2, Ctrl-C with 130, a reader that went away with 1, and none of them with a traceback.
"""

import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flash41.cli.anatomy import anatomy
from flash41.cli.batch import batch
from flash41.cli.bench import bench
from flash41.cli.canary import canary
from flash41.cli.chat import chat
from flash41.cli.common import print_error
from flash41.cli.compare import compare
from flash41.cli.doctor import doctor
from flash41.cli.draft_check import draft_check
from flash41.cli.generate import generate
from flash41.cli.hooks import hooks
from flash41.cli.inspect import inspect
from flash41.cli.make_checkpoint import make_checkpoint
from flash41.cli.make_tiny import make_tiny
from flash41.cli.plan import plan
from flash41.cli.prove import prove
from flash41.cli.serve import serve
from flash41.cli.trace import trace
from flash41.errors import Flash41Error, complaint
from flash41.version import __version__

FAILURE = 1
INTERRUPTED = 130
BUILDS = "flash41.kernels.cpu.build"
"""Who logs that kernels are built."""
EPILOG = "Every command explains itself: flash41 COMMAND --help."


def main() -> None:
    """Runs the command line of this process and exits with its status."""
    _settle_streams()
    _show_builds()
    sys.exit(run(sys.argv[1:]))


def _settle_streams() -> None:
    """Streams that exist, and a standard output that shows `?` for what its encoding lacks instead of failing."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started the process; its number would go to the next file
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 -- stays open until the end
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _show_builds() -> None:
    """On a terminal, says when kernels are being compiled: the one thing a first command waits for."""
    if sys.stderr.isatty():
        builds = logging.getLogger(BUILDS)
        builds.addHandler(logging.StreamHandler())
        builds.setLevel(logging.INFO)


def run(arguments: Sequence[str]) -> int:
    """Exit status of one command line."""
    status = _status(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        # Without this the interpreter would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if status == 0 and not isinstance(error, BrokenPipeError):  # whoever reads a pipe may go away
            print_error(_refusal(error))
        return FAILURE
    return status


def _status(arguments: Sequence[str]) -> int:
    try:
        typer.main.get_command(build_app()).main(args=list(arguments), prog_name="flash41")
    except SystemExit as exit_request:  # how typer ends, with a status or None
        return exit_request.code if isinstance(exit_request.code, int) else 0
    except Flash41Error as error:
        print_error(str(error))
        return FAILURE
    except OSError as error:
        print_error(_refusal(error))
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _refusal(error: OSError) -> str:
    return complaint("operating system", str(error), "every file and stream to be readable and writable")


def build_app() -> typer.Typer:
    """All commands, in the order of the help text."""
    # Plain help: it is readable in any width and costs half of what drawn boxes cost to start.
    app = typer.Typer(
        add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, epilog=EPILOG
    )
    app.callback()(_root)
    app.command("generate", short_help="Answer one prompt.")(generate)
    app.command("chat", short_help="Talk in the terminal.")(chat)
    app.command("serve", short_help="Answer over HTTP.")(serve)
    app.command("batch", short_help="Answer a file of calls.")(batch)
    app.command("bench", short_help="Measure speed on this machine.")(bench)
    app.command("canary", short_help="Score a model on held-out conversations.")(canary)
    app.command("inspect", short_help="Show a model's layers and sizes.")(inspect)
    app.command("anatomy", short_help="Draw a model on one page for a browser.")(anatomy)
    app.command("plan", short_help="Tell what fits a machine, and how fast.")(plan)
    app.command("doctor", short_help="Find every fault of a checkpoint.")(doctor)
    app.command("trace", short_help="Save every intermediate result of a run.")(trace)
    app.command("compare", short_help="Say where two traces part.")(compare)
    app.command("prove", short_help="Show that a comparison notices what is broken.")(prove)
    app.command("hooks", short_help="Show where hooks in another engine stand.")(hooks)
    app.command("draft-check", short_help="Show that drafts change no answer.")(draft_check)
    app.command("make-tiny", short_help="Write a small random checkpoint.")(make_tiny)
    app.command("make-checkpoint", short_help="Write a full-size checkpoint of holes.")(make_checkpoint)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"flash41 {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Run and examine DeepSeek-V4.1-Flash checkpoints, or the small trained one that comes with the package."""
