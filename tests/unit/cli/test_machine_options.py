import pytest
import typer

from flash41.cli.machine_options import MachineOptions, rate
from flash41.planning.machine import MachineKind


def typed(**given: str | int) -> MachineOptions:
    nothing = dict.fromkeys(("gpu", "ram", "unified", "disk_read", "memory_bandwidth", "reserve"))
    return MachineOptions(**{"gpus": 1, **nothing, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7G/s", 7 * 10**9),
        ("7GB/s", 7 * 10**9),
        ("4.8T", 4_800_000_000_000),
        ("0.5K/s", 500),
        ("123", 123),
    ],
)
def test_rates_count_in_thousands(text: str, expected: int) -> None:
    assert rate(text, "--x") == expected


@pytest.mark.parametrize("text", ["", "G/s", "1.G", "-1", "0", "0.0G/s", "7 G/s", "7GiB/s", "1e9", "0.0001"])
def test_what_is_no_rate_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected bytes per second above 0 such as 7G/s"):
        rate(text, "--x")


def test_memory_of_a_host_beside_gpus_is_no_memory_of_theirs() -> None:
    found = typed(gpu="141G", gpus=4, ram="512G", reserve="0").machine()
    assert (found.kind, found.num_devices, found.device_bytes) == (MachineKind.GPU, 4, 141 * 2**30)
    assert (found.host_bytes, found.reserve_bytes) == (512 * 2**30, 0)


def test_a_machine_is_here_only_where_none_is_described() -> None:
    assert typed().is_here
    assert not typed(ram="64G").is_here
    assert typed().machine().kind is MachineKind.RAM
    assert typed(unified="128G").machine().kind is MachineKind.UNIFIED
