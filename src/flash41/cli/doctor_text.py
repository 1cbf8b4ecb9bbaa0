"""A doctor's report for people: facts first, then every fault with a number; and the bar of a deep examination."""

from pathlib import Path
from types import TracebackType

import typer

from flash41.cli.common import human_bytes, human_count, print_facts, print_heading
from flash41.tools.doctor import Report


def print_report(report: Report) -> None:
    """Writes everything to standard output."""
    typer.echo(report.directory)
    print_heading("Facts")
    print_facts(_facts(report))
    if not report.faults:
        print_heading("No faults")
        return
    print_heading(f"{len(report.faults)} fault{'' if len(report.faults) == 1 else 's'}")
    for number, fault in enumerate(report.faults, 1):
        typer.echo(f"  {number}. [{fault.kind.value}] {fault.message}")


def _facts(report: Report) -> list[tuple[str, str]]:
    dtypes = ", ".join(f"{name} {human_bytes(count)}" for name, count in sorted(report.bytes_by_dtype.items()))
    expected = report.expected
    owners = [
        (f"  {name}", f"{amount.num_tensors:,} tensors, {_bytes(amount.num_bytes)}")
        for name, amount in report.owners.items()
    ]
    return [
        ("identity", report.identity),
        *((f"SHA-256 of {name}", digest) for name, digest in report.hashes.items()),
        ("shards", f"{len(report.shards)}, {_bytes(report.file_bytes)}"),
        ("headers", _bytes(report.header_bytes)),
        ("tensors found", f"{report.num_tensors:,}, {_bytes(report.payload_bytes)}"),
        ("by dtype", dtypes or "none"),
        (
            "tensors expected",
            f"{expected.num_tensors:,}, {_bytes(expected.num_bytes)}; {expected.num_parameters:,} parameters "
            f"({human_count(expected.num_parameters)})"
            if expected
            else "unknown (no valid config.json)",
        ),
        *owners,
        (
            "token map",
            report.token_map.value + (f", SHA-256 {report.token_map_sha256}" if report.token_map_sha256 else ""),
        ),
        (
            "Engram rows",
            ", ".join(f"{rows:,}" for rows in report.engram_rows) + " (sums of prime moduli, checked)"
            if report.engram_rows
            else "none",
        ),
        ("generation_config.json", "present (nothing reads it)" if report.has_generation_config else "absent"),
        ("other weight files", ", ".join(report.leftovers) or "none"),
        *_deep(report),
    ]


def _deep(report: Report) -> list[tuple[str, str]]:
    found = report.deep
    if found is None:
        return [("weights", "not read (--deep reads every byte)")]
    resumed = f", {found.num_resumed} of them by an earlier scan" if found.num_resumed else ""
    compared = f"; {found.num_compared} compared with known checksums" if found.num_compared else ""
    return [
        ("weights", f"read, {len(found.sha256)} shards{resumed}{compared}"),
        *((f"SHA-256 of {name}", digest) for name, digest in found.sha256.items()),
    ]


class DeepBar:
    """A progress bar over the bytes of all shards, on a terminal only; errors are let through."""

    def __init__(self, directory: Path) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
        self._bar = Progress(
            *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        total = sum(path.stat().st_size for path in directory.glob("*.safetensors") if path.is_file())
        self._task = self._bar.add_task("reading", total=total)

    def __enter__(self) -> "DeepBar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, shard: str, num_bytes: int) -> None:
        """So many more bytes of a shard are read."""
        self._bar.update(self._task, advance=num_bytes, description=shard)


def _bytes(count: int) -> str:
    return f"{count:,} bytes" + (f" ({human_bytes(count)})" if count >= 1024 else "")
