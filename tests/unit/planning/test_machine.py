from dataclasses import replace

from flash41.planning.machine import DEFAULT_BANDWIDTH, MachineKind, machine, machine_faults
from helpers.planned import GIB, gpus, ram


def test_every_default_that_is_used_is_an_assumption_that_names_its_option() -> None:
    options = {
        MachineKind.GPU: ["--reserve", "--memory-bandwidth", "--disk-read", "--ram"],
        MachineKind.RAM: ["--reserve", "--memory-bandwidth", "--disk-read"],
        MachineKind.UNIFIED: ["--reserve", "--memory-bandwidth", "--disk-read"],
    }
    for kind, names in options.items():
        found = machine(kind, 10 * GIB)
        assert [sentence.rpartition("(")[2].split(")")[0].split()[0] for sentence in found.assumptions] == names
        assert (found.reserve_bytes, found.memory_bandwidth) == (GIB, DEFAULT_BANDWIDTH[kind])
        assert found.usable_bytes == 9 * GIB


def test_what_is_stated_is_no_assumption() -> None:
    found = gpus(2, reserve_bytes=0, memory_bandwidth=10, disk_read=20, host_bytes=30)
    assert found.assumptions == ()
    assert (found.usable_bytes, found.memory_bandwidth, found.disk_read) == (141 * GIB, 10, 20)


def test_only_gpus_keep_all_their_weights() -> None:
    assert [machine(kind, GIB).maps_weights for kind in MachineKind] == [False, True, True]


def test_an_impossible_machine_is_refused_with_every_fault() -> None:
    assert list(machine_faults(ram(64))) == []
    broken = replace(ram(64), device_bytes=0, memory_bandwidth=-1, num_devices=2, reserve_bytes=5)
    assert list(machine_faults(broken)) == [
        "device memory: got 0, expected > 0",
        "memory bandwidth: got -1, expected > 0",
        "reserve: got 5, expected from 0 to less than the memory of 0",
        "number of devices: got 2, expected 1 (only GPUs share a model)",
    ]
