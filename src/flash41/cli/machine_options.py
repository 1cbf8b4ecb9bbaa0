"""Options that describe a machine, and the machine they describe."""

import os
import re
from dataclasses import dataclass
from typing import Annotated

import typer

from flash41.cli.options import num_bytes
from flash41.planning.machine import Machine, MachineKind, machine

RATE = re.compile(r"([0-9]{1,30})(?:\.([0-9]{1,9}))?([KMGT]?)(?:B?/s)?")
RATE_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

Gpu = Annotated[
    str | None, typer.Option("--gpu", metavar="BYTES", help="A machine with GPUs: memory of one of them, as 141G.")
]
Gpus = Annotated[int, typer.Option("--gpus", metavar="N", help="How many such GPUs share the model.")]
Ram = Annotated[
    str | None,
    typer.Option(
        "--ram",
        metavar="BYTES",
        help="A machine that computes on its processors: its memory, as 64G. With --gpu: the memory of the host.",
    ),
]
Unified = Annotated[
    str | None,
    typer.Option("--unified", metavar="BYTES", help="A machine with one memory for everything: how much, as 128G."),
]
DiskRead = Annotated[
    str | None, typer.Option("--disk-read", metavar="RATE", help="Speed of the disk, as 7G/s. [default: 7G/s]")
]
MemoryBandwidth = Annotated[
    str | None,
    typer.Option(
        "--memory-bandwidth",
        metavar="RATE",
        help="Speed of the memory of one GPU or of the machine. [default: 4.8T/s a GPU, 100G/s RAM, 256G/s unified]",
    ),
]
Reserve = Annotated[
    str | None,
    typer.Option("--reserve", metavar="BYTES", help="Memory left to everything else. [default: a tenth]"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """What was typed."""

    gpu: str | None
    gpus: int
    ram: str | None
    unified: str | None
    disk_read: str | None
    memory_bandwidth: str | None
    reserve: str | None

    def machine(self) -> Machine:
        """The machine; the one this process runs on where none is described.  Usage errors name the option."""
        kinds = {"--gpu": self.gpu, "--unified": self.unified}
        given = [name for name, value in kinds.items() if value is not None]
        if len(given) > 1 or (self.unified is not None and self.ram is not None):
            raise typer.BadParameter("got two kinds of machine, expected one of --gpu, --ram and --unified")
        if self.gpus != 1 and self.gpu is None:
            raise typer.BadParameter(f"got {self.gpus} without the memory of one, expected --gpu", param_hint="--gpus")
        kind = {"--gpu": MachineKind.GPU, "--unified": MachineKind.UNIFIED}.get("".join(given), MachineKind.RAM)
        host = None if self.ram is None else num_bytes(self.ram, "--ram")
        if kind is MachineKind.GPU:
            device = num_bytes(self.gpu or "", "--gpu")
        elif kind is MachineKind.UNIFIED:
            device = num_bytes(self.unified or "", "--unified")
        else:
            device = memory_here() if host is None else host
        return machine(
            kind,
            device,
            num_devices=self.gpus,
            reserve_bytes=_reserve(self.reserve),
            host_bytes=host if kind is MachineKind.GPU else None,
            memory_bandwidth=_rate(self.memory_bandwidth, "--memory-bandwidth"),
            disk_read=_rate(self.disk_read, "--disk-read"),
        )

    @property
    def is_here(self) -> bool:
        """Whether no machine was described."""
        return self.gpu is None and self.ram is None and self.unified is None


def memory_here() -> int:
    """Bytes of memory of the machine this process runs on."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def rate(text: str, option: str) -> int:
    """The bytes per second of ``7G/s`` or ``4.8T``; units are powers of 1000, as makers of memories count."""
    found = RATE.fullmatch(text)
    if found is not None:
        digits, unit = found[2] or "", RATE_UNITS[found[3]]
        value: int = (int(found[1]) * 10 ** len(digits) + int(digits or 0)) * unit // 10 ** len(digits)
        if value:
            return value
    raise typer.BadParameter(f"got {text!r}, expected bytes per second above 0 such as 7G/s", param_hint=option)


def _rate(text: str | None, option: str) -> int | None:
    return None if text is None else rate(text, option)


def _reserve(text: str | None) -> int | None:
    if text is None:
        return None
    return 0 if text == "0" else num_bytes(text, "--reserve")
