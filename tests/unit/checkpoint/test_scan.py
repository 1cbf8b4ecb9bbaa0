import hashlib
import os
import tracemalloc
from pathlib import Path

import pytest

from flash41.checkpoint import scan
from flash41.checkpoint.faults import FaultKind
from flash41.checkpoint.headers import read_header
from helpers.checkpoints import TINY, shard_bytes

ONE_BF16 = b"\x80\x3f"
NAN_BF16 = b"\xc0\x7f"


def unheard(num_bytes: int) -> None:
    """Progress that nobody watches."""


def shard(path: Path, *tensors: tuple[str, str, list[int], bytes]) -> Path:
    """A shard of the tensors, back to back."""
    header, data = {}, b""
    for name, dtype, shape, content in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    path.write_bytes(shard_bytes(header, data))
    return path


def messages(path: Path) -> list[str]:
    return [fault.message for fault in scan.scan_shard(read_header(path), unheard).faults]


def test_the_checksum_is_that_of_the_whole_file_and_every_byte_is_told() -> None:
    for path in sorted(TINY.glob("*.safetensors")):
        told: list[int] = []
        found = scan.scan_shard(read_header(path), told.append)
        assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert found.faults == ()
        assert sum(told) == path.stat().st_size


def test_the_first_bad_value_is_named_with_its_place_and_their_number(tmp_path: Path) -> None:
    content = ONE_BF16 * 5 + NAN_BF16 + ONE_BF16 + NAN_BF16 * 2 + ONE_BF16 * 3
    path = shard(tmp_path / "a.safetensors", ("x.weight", "BF16", [3, 4], content))
    assert messages(path) == ["x.weight: got NaN or infinity at [1, 1], expected finite BF16 values; 3 such"]


@pytest.mark.parametrize("piece", [4, 8, 12])
def test_a_place_does_not_depend_on_how_a_tensor_is_read(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "PIECE_BYTES", piece)
    content = ONE_BF16 * 9 + NAN_BF16 + ONE_BF16 + NAN_BF16
    path = shard(tmp_path / "a.safetensors", ("x.weight", "BF16", [12], content))
    assert messages(path) == ["x.weight: got NaN or infinity at [9], expected finite BF16 values; 2 such"]


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("F8_E4M3", bytes(set(range(256)) - {127, 255}), b"\x7f"),
        ("F8_E4M3", b"\x01", b"\xff"),
        ("BF16", b"\x7f\x7f" + b"\x01\x00", b"\x80\xff"),  # the largest and the smallest numbers are numbers
        ("F32", b"\xff\xff\x7f\x7f" + b"\x01\x00\x00\x00", b"\x01\x00\x80\x7f"),
    ],
)
def test_all_finite_values_pass_and_all_others_do_not(dtype: str, good: bytes, bad: bytes, tmp_path: Path) -> None:
    path = shard(tmp_path / "a.safetensors", ("x", dtype, [len(good) // len(bad)], good))
    assert messages(path) == []
    path = shard(tmp_path / "b.safetensors", ("x", dtype, [len(good) // len(bad) + 1], good + bad))
    assert len(messages(path)) == 1


def test_packed_codes_are_all_numbers_and_scales_all_but_one(tmp_path: Path) -> None:
    path = shard(
        tmp_path / "a.safetensors",
        ("w", "I8", [256], bytes(range(256))),
        ("s", "F8_E8M0", [2, 128], bytes(range(256))),
    )
    (fault,) = scan.scan_shard(read_header(path), unheard).faults
    assert (fault.kind, fault.message) == (FaultKind.SCALE, "s: scale byte 255 (NaN) at [1, 127]")


def test_zeros_are_a_fault_but_for_what_is_added(tmp_path: Path) -> None:
    path = shard(
        tmp_path / "a.safetensors",
        ("layers.0.ffn.gate.bias", "F32", [2], b"\0" * 8),
        ("layers.0.attn.attn_sink", "F32", [1], b"\0" * 4),
        ("empty.weight", "BF16", [0, 3], b""),
        ("norm.weight", "BF16", [2], b"\0" * 4),
    )
    assert messages(path) == [
        "norm.weight: got nothing but zero bytes, expected weights (a hole, as an incomplete copy leaves)"
    ]


def test_a_file_that_changes_while_it_is_read_is_one_fault(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.safetensors", ("x.weight", "BF16", [4], ONE_BF16 * 4))
    header = read_header(path)
    os.truncate(path, path.stat().st_size - 2)
    (fault,) = scan.scan_shard(header, unheard).faults
    assert fault.kind is FaultKind.CHANGED
    assert "ended before its last tensor" in fault.message
    path.unlink()
    (fault,) = scan.scan_shard(header, unheard).faults
    assert fault.kind is FaultKind.CHANGED


def test_memory_is_a_few_pieces_whatever_the_size_of_a_tensor(tmp_path: Path) -> None:
    size = 16 * scan.PIECE_BYTES
    entry = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}
    path = tmp_path / "a.safetensors"
    path.write_bytes(shard_bytes({"x.weight": entry}))
    os.truncate(path, path.stat().st_size + size)
    header = read_header(path)
    tracemalloc.start()
    try:
        scan.scan_shard(header, unheard)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * scan.PIECE_BYTES
