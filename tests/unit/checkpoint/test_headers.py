import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flash41.checkpoint.faults import FaultyCheckpointError
from flash41.checkpoint.headers import read_header
from flash41.checkpoint.stored import StoredDtype
from helpers.checkpoints import Header, shard_bytes

DATA = bytes(range(28))


def valid() -> Header:
    return {
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [16, 24]},
        "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "c": {"dtype": "I8", "shape": [1, 4], "data_offsets": [24, 28]},
        "empty": {"dtype": "F8_E8M0", "shape": [0, 3], "data_offsets": [28, 28]},
    }


def changed(name: str, **values: object) -> Header:
    header = valid()
    header[name] = header[name] | values
    return header


def refusal(folder: Path, content: bytes) -> str:
    path = folder / "s.safetensors"
    path.write_bytes(content)
    with pytest.raises(FaultyCheckpointError) as caught:
        read_header(path)
    return str(caught.value)


def test_a_valid_header_gives_places_and_identity(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    content = shard_bytes(valid(), DATA)
    path.write_bytes(content)
    header = read_header(path)
    assert list(header.tensors) == ["b", "a", "c", "empty"]
    entry = header.tensors["b"]
    assert (entry.dtype, entry.shape, entry.begin, entry.end) == (StoredDtype.BF16, (2, 2), 16, 24)
    assert header.data_start == len(content) - 28
    assert header.payload_bytes == 28
    assert header.metadata == {"format": "pt"}
    status = path.stat()
    assert (header.identity.file_bytes, header.identity.inode) == (len(content), status.st_ino)
    assert header.identity.mtime_ns == status.st_mtime_ns


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (changed("a", dtype="F16"), "tensor 'a': dtype: got 'F16', expected one of I8, F8_E4M3"),
        (changed("a", dtype="F8_E5M2"), "dtype: got 'F8_E5M2'"),
        (changed("a", dtype=3), "dtype: got 3"),
        (changed("a", shape=[True, 4]), "shape: got [True, 4]"),
        (changed("a", shape=[-4]), "shape: got [-4]"),
        (changed("a", shape=[4.0]), "shape: got [4.0]"),
        (changed("a", shape=[1] * 9), "at most 8 integers"),
        (changed("a", shape=[2**63]), "integers in [0, 2^63)"),
        (changed("a", shape="4"), "shape: got '4'"),
        (changed("a", shape=[5]), "data_offsets: got [0, 16], expected 20 bytes for F32 [5]"),
        (changed("a", data_offsets=[0, 16, 16]), "data_offsets: got [0, 16, 16], expected two integers"),
        (changed("a", data_offsets=[-1, 15]), "data_offsets: got [-1, 15]"),
        (changed("a", data_offsets=[False, 16]), "data_offsets: got [False, 16]"),
        (changed("a", data_offsets=[16, 0]), "data_offsets: got [16, 0], expected 16 bytes"),
        (changed("b", data_offsets=[12, 20]), "expected begin 16 (overlap in the data)"),
        (changed("a", extra=1), "entry: got ['data_offsets', 'dtype', 'extra', 'shape'], expected exactly"),
        (valid() | {"a": None}, "entry: got 'NoneType'"),
        (valid() | {"": valid()["empty"]}, "tensor name: got '', expected printable ASCII"),
        (valid() | {"a\n": valid()["empty"]}, "tensor name"),
        (valid() | {"__metadata__": {"format": 1}}, "__metadata__"),
        (valid() | {"__metadata__": []}, "__metadata__"),
    ],
)
def test_an_entry_that_lies_is_named(tmp_path: Path, header: Header, words: str) -> None:
    assert words in refusal(tmp_path, shard_bytes(header, DATA))


def test_a_gap_between_tensors_is_refused(tmp_path: Path) -> None:
    header = valid()
    for name in ("b", "c", "empty"):
        header[name]["data_offsets"] = [offset + 4 for offset in header[name]["data_offsets"]]
    assert "gap in the data" in refusal(tmp_path, shard_bytes(header, DATA + bytes(4)))


def test_all_faults_of_a_header_are_listed_at_once(tmp_path: Path) -> None:
    both = changed("a", dtype="F16") | {"c": changed("c", shape=[9])["c"]}
    message = refusal(tmp_path, shard_bytes(both, DATA))
    assert "tensor 'a'" in message
    assert "tensor 'c'" in message


@pytest.mark.parametrize(("data", "got"), [(DATA[:-1], -1), (DATA + b"x", 1)])
def test_a_file_of_another_length_says_both_numbers(tmp_path: Path, data: bytes, got: int) -> None:
    size = len(shard_bytes(valid(), DATA))
    assert refusal(tmp_path, shard_bytes(valid(), data)) == f"s.safetensors: got {size + got} bytes, expected {size}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "got 0 bytes, expected at least the 8"),
        (b"1234567", "got 7 bytes"),
        (shard_bytes("{}", length=50), "got 10 bytes, expected at least 58 for its header"),
        (shard_bytes("{}", length=2**63), f"header length: got {2**63}"),
        (b"GGUF" + bytes(60), "header"),
        (shard_bytes(" {}"), "expected a JSON object"),
        (shard_bytes("{"), "expected strict JSON"),
        (shard_bytes("[]"), "expected a JSON object"),
        (shard_bytes(b'{"\xff": 1}'), "expected strict JSON"),
        (shard_bytes('{"a": NaN}'), "the number NaN"),
        (shard_bytes('{"a": 1, "a": 2}'), "key 'a' appears twice"),
        (shard_bytes('{"a": {"shape": [], "shape": []}}'), "key 'shape' appears twice"),
        (shard_bytes('{"a": ' + "9" * 5000 + "}"), "strict JSON"),
        (shard_bytes('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"), "nested too deeply"),
        (shard_bytes('{"a": ' + '{"a": ' * 500 + "1" + "}" * 501), "entry: got ['a']"),
    ],
)
def test_a_broken_file_is_one_clear_error(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(tmp_path, content)


def test_messages_stay_short_however_long_the_damage(tmp_path: Path) -> None:
    header = changed("a", shape=[1] * 100_000, dtype="F32") | {"x" * 100_000: 1}
    assert len(refusal(tmp_path, shard_bytes(header, DATA))) < 2000


def test_an_error_shows_twenty_faults_and_keeps_all(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    path.write_bytes(shard_bytes({f"t{number}": 0 for number in range(50)}))
    with pytest.raises(FaultyCheckpointError, match="and 30 more") as caught:
        read_header(path)
    assert len(caught.value.faults) == 50


def test_a_missing_file_and_a_pipe_are_refused_without_waiting(tmp_path: Path) -> None:
    with pytest.raises(FaultyCheckpointError, match="No such file"):
        read_header(tmp_path / "none.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(FaultyCheckpointError, match="not a regular file"):
        read_header(tmp_path / "pipe.safetensors")


def accepted_or_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        header = read_header(path)
    except FaultyCheckpointError:
        return
    assert header.payload_bytes == sum(entry.end - entry.begin for entry in header.tensors.values())


fuzzed = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
VALID = shard_bytes(valid(), DATA)


@fuzzed
@given(edits=st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes_are_accepted_or_refused_but_never_crash(tmp_path: Path, edits: list[tuple[int, int]]) -> None:
    content = bytearray(VALID)
    for index, value in edits:
        content[index] = value
    accepted_or_refused(tmp_path / "s.safetensors", bytes(content))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@fuzzed
@given(
    name=st.sampled_from([*valid(), "new"]),
    field=st.sampled_from(["dtype", "shape", "data_offsets"]),
    value=json_values,
)
def test_any_value_in_any_field_is_accepted_or_refused(tmp_path: Path, name: str, field: str, value: Any) -> None:
    header = valid()
    entry = header.get(name)
    header[name] = entry | {field: value} if isinstance(entry, dict) else value
    accepted_or_refused(tmp_path / "s.safetensors", shard_bytes(json.dumps(header), DATA))


@fuzzed
@given(cut=st.integers(0, len(VALID) - 1))
def test_every_truncation_is_refused(tmp_path: Path, cut: int) -> None:
    refusal(tmp_path, VALID[:cut])
