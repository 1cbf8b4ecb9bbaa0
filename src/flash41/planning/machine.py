"""A machine as a plan sees it: memories, their bandwidths, and what of them is assumed.

    gpu       N devices, each with memory of its own; weights stay there, Engram tables on the host
    ram       processors and one memory; weights are mapped from the disk and stay where there is room
    unified   the same, one memory for processors and an accelerator

Sizes are bytes, rates bytes per second.  Whatever nobody states has a default, and every default that is used is an
assumption that the plan prints.  Integers only.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from flash41.errors import complaint


class MachineKind(enum.Enum):
    """Where the weights are read from."""

    GPU = "gpu"
    RAM = "ram"
    UNIFIED = "unified"


DEFAULT_BANDWIDTH = {
    MachineKind.GPU: 4_800_000_000_000,
    MachineKind.RAM: 100_000_000_000,
    MachineKind.UNIFIED: 256_000_000_000,
}
"""Bytes per second of one device's memory: an H200; two channels of DDR5-6400; LPDDR5X-8000 on 256 bits."""

DEFAULT_DISK_READ = 7_000_000_000
"""Bytes per second of a solid-state disk on four lanes of PCIe 4.0."""

RESERVE_SHARE = 10
"""Of each memory, one part in so many is left to the system, the runtime and fragmentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Memories and rates."""

    kind: MachineKind
    """Where the weights are read from."""
    num_devices: int
    """Devices that share the model; 1 unless GPUs."""
    device_bytes: int
    """Memory of each device."""
    reserve_bytes: int
    """Bytes of each device that no plan touches."""
    host_bytes: int | None
    """Memory beside the GPUs that keeps Engram tables; None where nobody stated it, and without GPUs."""
    memory_bandwidth: int
    """Bytes per second from the memory of one device."""
    disk_read: int
    """Bytes per second from the disk."""
    assumptions: tuple[str, ...]
    """Defaults that were used, as sentences."""

    @property
    def usable_bytes(self) -> int:
        """Bytes of each device that a plan may use."""
        return self.device_bytes - self.reserve_bytes

    @property
    def maps_weights(self) -> bool:
        """Whether weights may lie on the disk and be read when touched."""
        return self.kind is not MachineKind.GPU


def machine(
    kind: MachineKind,
    device_bytes: int,
    *,
    num_devices: int = 1,
    reserve_bytes: int | None = None,
    host_bytes: int | None = None,
    memory_bandwidth: int | None = None,
    disk_read: int | None = None,
) -> Machine:
    """A machine with defaults, and a sentence for each, in the place of None."""
    reserve = device_bytes // RESERVE_SHARE if reserve_bytes is None else reserve_bytes
    bandwidth = DEFAULT_BANDWIDTH[kind] if memory_bandwidth is None else memory_bandwidth
    disk = DEFAULT_DISK_READ if disk_read is None else disk_read
    assumptions = []
    if reserve_bytes is None:
        assumptions.append(f"a tenth of the memory, {reserve:,} bytes, is left to everything else (--reserve)")
    if memory_bandwidth is None:
        assumptions.append(f"memory is read at {bandwidth:,} bytes per second (--memory-bandwidth)")
    if disk_read is None:
        assumptions.append(f"the disk is read at {disk:,} bytes per second (--disk-read)")
    if kind is MachineKind.GPU and host_bytes is None:
        assumptions.append("the host's memory keeps the Engram tables (--ram states how much it has)")
    return Machine(
        kind=kind,
        num_devices=num_devices,
        device_bytes=device_bytes,
        reserve_bytes=reserve,
        host_bytes=host_bytes,
        memory_bandwidth=bandwidth,
        disk_read=disk,
        assumptions=tuple(assumptions),
    )


def machine_faults(found: Machine) -> Iterator[str]:
    """What makes a machine impossible, one message per fault."""
    sizes = {
        "device memory": found.device_bytes,
        "memory bandwidth": found.memory_bandwidth,
        "disk read": found.disk_read,
        "number of devices": found.num_devices,
    }
    if found.host_bytes is not None:
        sizes["host memory"] = found.host_bytes
    for name, value in sizes.items():
        if value <= 0:
            yield complaint(name, value, "> 0")
    if not 0 <= found.reserve_bytes < max(1, found.device_bytes):
        yield complaint("reserve", found.reserve_bytes, f"from 0 to less than the memory of {found.device_bytes}")
    if found.kind is not MachineKind.GPU and found.num_devices > 1:
        yield complaint("number of devices", found.num_devices, "1", "only GPUs share a model")
