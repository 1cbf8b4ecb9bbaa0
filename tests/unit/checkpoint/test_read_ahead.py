import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flash41.checkpoint.presence import Presence
from flash41.checkpoint.read_ahead import Extent, ReadAhead, joined

NUM_BYTES = 3 << 20


class Mapped:
    """A file on a disk, mapped, whose pages can be dropped from memory."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(os.urandom(NUM_BYTES))
        self.descriptor = os.open(path, os.O_RDONLY)
        os.fsync(self.descriptor)
        self.memory = mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_READ)
        self.address = np.frombuffer(self.memory, dtype=np.uint8).ctypes.data

    def drop(self) -> None:
        self.memory.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    @property
    def missing(self) -> int:
        return Presence().missing_bytes(self.address, NUM_BYTES)


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[Mapped]:
    found = Mapped(tmp_path / "data")
    yield found
    os.close(found.descriptor)


@pytest.fixture
def cold(mapped: Mapped) -> Mapped:
    mapped.drop()
    if mapped.missing < NUM_BYTES:
        pytest.skip("this file system keeps its pages")
    return mapped


def test_a_dropped_range_is_missing_and_a_read_one_is_not(cold: Mapped) -> None:
    os.pread(cold.descriptor, NUM_BYTES, 0)
    assert cold.missing == 0


def test_only_the_pages_of_a_range_count(cold: Mapped) -> None:
    page = mmap.PAGESIZE
    assert Presence().missing_bytes(cold.address + page - 1, 2) == 2 * page
    assert Presence().missing_bytes(cold.address, 0) == 0


def test_a_range_nobody_mapped_is_called_present() -> None:
    assert Presence().missing_bytes(1 << 20, 1 << 16) == 0


def test_requested_ranges_come_into_memory_without_being_read(cold: Mapped) -> None:
    ahead = ReadAhead()
    requests = ahead.request([Extent(descriptor=cold.descriptor, begin=0, num_bytes=NUM_BYTES)])
    for request in requests:
        request.result()
    deadline = time.monotonic() + 20
    while cold.missing and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cold.missing == 0
    ahead.close()


def test_closing_leaves_no_thread_and_a_later_request_begins_anew(mapped: Mapped) -> None:
    ahead, whole = ReadAhead(), Extent(descriptor=mapped.descriptor, begin=0, num_bytes=NUM_BYTES)
    for _ in range(2):
        (request,) = ahead.request([whole])
        request.result()
        assert _threads()
        ahead.close()
        assert not _threads()
    ahead.close()


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("flash41-read-ahead")]


FORKING = """
import os, sys
from flash41.checkpoint.read_ahead import Extent, ReadAhead
descriptor = os.open(sys.argv[1], os.O_RDONLY)
ahead, whole = ReadAhead(), [Extent(descriptor=descriptor, begin=0, num_bytes=1 << 20)]
[request.result() for request in ahead.request(whole)]
child = os.fork()
if child == 0:
    [request.result(timeout=20) for request in ahead.request(whole)]
    ahead.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
[request.result() for request in ahead.request(whole)]
"""


def test_a_forked_process_reads_ahead_with_threads_of_its_own_and_both_end(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(1 << 20))
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(tmp_path / "data")]
    subprocess.run(command, check=True, timeout=60)


def test_neighbours_are_one_range() -> None:
    def at(begin: int, num_bytes: int, descriptor: int = 3) -> Extent:
        return Extent(descriptor=descriptor, begin=begin, num_bytes=num_bytes)

    assert joined([at(10, 5), at(0, 10), at(20, 1), at(15, 2, descriptor=4)]) == [
        at(0, 15),
        at(20, 1),
        at(15, 2, descriptor=4),
    ]
