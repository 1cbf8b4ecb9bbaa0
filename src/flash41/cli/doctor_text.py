"""A doctor's report for people: facts first, then every fault with a number."""

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
        ("token map", report.token_map.value),
        ("generation_config.json", "present (nothing reads it)" if report.has_generation_config else "absent"),
        ("other weight files", ", ".join(report.leftovers) or "none"),
    ]


def _bytes(count: int) -> str:
    return f"{count:,} bytes" + (f" ({human_bytes(count)})" if count >= 1024 else "")
