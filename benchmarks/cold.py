"""Decode speed of a true-width slice whose weights come from the disk, against what the disk gives in the same run.

    python benchmarks/cold.py [--quick] [--layers N] [--experts N] [--tokens N] [--threads N] [--folder DIR]

prints JSON lines:

    {"what": "disk", "bytes_per_second": 7.1e8}
    {"what": "dropped", "tokens_per_second": 0.31, "read_bytes": 2600000000, "needed_bytes": 2595000000, "x": 0.93, ...}
    {"what": "limited", "limit_bytes": 1219000000, ...}

`disk` is read with the requests that the engine makes, from pages that are not in memory, before and after; the better
one counts.  `dropped`: before every token all pages are taken out of memory, so that each weight comes from the disk.
`limited`: a process of its own in a control group whose memory, page cache included, is a quarter of the weights;
where no such group can be made, `dropped` with a budget for weights of a quarter takes its place and the line says why.
x is the time the disk alone would take for the bytes read over the time taken.  `same` compares the tokens with those
of a run from memory.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from moved import Moved, Pages, disk_bytes, forwards, opened, prompt_of, sizes_of, slice_in

from flash41 import LLM, SamplingParams
from flash41.checkpoint.read_ahead import Extent, ReadAhead

PROMPT = 4
DISK_BYTES = 512 << 20
GROUPS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
LIMIT_FILES = ("memory.limit_in_bytes", "memory.max")


def disk_rate(path: Path) -> float:
    """Bytes per second of a file that is not in memory."""
    ahead = ReadAhead()
    with opened(path) as descriptor:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        num_bytes, part = min(DISK_BYTES, path.stat().st_size), 16 << 20
        started = time.perf_counter()
        ahead.request(
            [
                Extent(descriptor=descriptor, begin=begin, num_bytes=min(part, num_bytes - begin))
                for begin in range(0, num_bytes, part)
            ]
        )
        for begin in range(0, num_bytes, part):
            os.pread(descriptor, part, begin)
        rate = num_bytes / (time.perf_counter() - started)
        ahead.close()
    return rate


def engine(directory: Path, threads: int, **weights: object) -> LLM:
    return LLM(directory, threads=threads, max_num_seqs=1, max_model_len=256, **weights)  # type: ignore[arg-type]


def tokens_of(llm: LLM, num_tokens: int) -> list[int]:
    params = SamplingParams(max_tokens=num_tokens + 1, seed=1, ignore_eos=True)
    return list(llm.generate([prompt_of(PROMPT, 0)], params)[0].output_ids)


def measure(directory: Path, num_tokens: int, threads: int, drops: bool, **weights: object) -> dict[str, object]:
    """Tokens behind a prompt: their time, what the disk was asked for, and what they needed."""
    llm = engine(directory, threads, **weights)
    pages, moved = Pages(llm), Moved(llm, sizes_of(directory))
    tokens_of(llm, 1)  # builds the kernels
    before, read, found, last = llm.engine.stats.experts, 0, [], disk_bytes()

    def prepare() -> None:
        nonlocal last
        if drops:
            pages.drop()
        last = disk_bytes()

    for one in forwards(llm, moved, prompt_of(PROMPT, 1), num_tokens, prepare):
        found.append(one)
        read += disk_bytes() - last if len(found) > 1 else 0
    decodes, after = found[1:], llm.engine.stats.experts
    counts = {
        name: sum(getattr(now, name) - getattr(then, name) for now, then in zip(after, before, strict=True))
        for name in ("num_hits", "num_misses", "num_expected", "num_right")
    }
    seconds = sum(one.seconds for one in decodes)
    return {
        "tokens_per_second": round(num_tokens / seconds, 3),
        "seconds": seconds,
        "read_bytes": read,
        "needed_bytes": sum(one.num_bytes for one in decodes),
        **counts,
        "num_hot": sum(layer.num_hot for layer in after),
        "tokens": tokens_of(llm, num_tokens),
    }


@contextmanager
def memory_group(num_bytes: int) -> Iterator[tuple[Path | None, str]]:
    """A control group with a limit, removed afterwards; without one, why."""
    reason = "no control groups for memory"
    for root, name in zip(GROUPS, LIMIT_FILES, strict=True):
        group = root / f"flash41-cold-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            reason = str(error)
            continue
        try:
            (group / name).write_text(str(num_bytes))
        except OSError as error:
            reason = str(error)
            group.rmdir()
            continue
        try:
            yield group, ""
        finally:
            group.rmdir()
        return
    yield None, reason


def in_group(group: Path, directory: Path, num_tokens: int, threads: int) -> dict[str, object]:
    """`measure` in a process that joins the group before it opens anything."""
    command = [sys.executable, __file__, "--inside", str(group), "--slice", str(directory)]
    command += ["--tokens", str(num_tokens), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr[-300:] or f"exit {done.returncode}"}
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(what: str, found: dict[str, object], disk: float, wanted: list[int], **more: object) -> None:
    tokens, seconds = found.pop("tokens", None), found.pop("seconds", None)
    line = {"what": what, **more, **found, "same": tokens == wanted}
    if isinstance(seconds, float):
        line["x"] = round(float(str(found["read_bytes"])) / disk / seconds, 3)
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode speed from the disk against what the disk gives.")
    parser.add_argument("--quick", action="store_true", help="a slice of a small model; a few seconds")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=6)
    parser.add_argument("--threads", type=int, help="CPU threads; without it torch's choice")
    parser.add_argument(
        "--folder", type=Path, help="where the slice is made and removed; without it a temporary folder"
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--slice", type=Path, help=argparse.SUPPRESS)
    wish = parser.parse_args()
    threads = wish.threads or torch.get_num_threads()
    if wish.inside:
        (wish.inside / "cgroup.procs").write_text(str(os.getpid()))
        print(json.dumps(measure(wish.slice, wish.tokens, threads, drops=False, weights="auto")))
        return
    with tempfile.TemporaryDirectory(dir=wish.folder) as folder:
        run(slice_in(Path(folder), wish.quick, wish.layers, wish.experts), wish.tokens, threads, wish.quick)


def run(directory: Path, num_tokens: int, threads: int, quick: bool) -> None:
    largest = max(directory.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    first = disk_rate(largest)
    wanted = tokens_of(engine(directory, threads, weights="resident"), num_tokens)
    dropped = measure(directory, num_tokens, threads, drops=True, weights="mapped")
    quarter = sizes_of(directory).total_bytes // 4
    gc.collect()  # mapped pages would stay, and count for whoever read them
    for path in directory.glob("*.safetensors"):
        with opened(path) as descriptor:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    with memory_group(quarter) as (group, reason):
        if group is None or quick:  # a process alone is larger than a quarter of a slice of `make-tiny`'s model
            limited = measure(directory, num_tokens, threads, drops=True, weights_memory_bytes=quarter)
            limited["without_limit"] = reason or "too small a slice"
        else:
            limited = in_group(group, directory, num_tokens, threads)
    disk = max(first, disk_rate(largest))
    print(json.dumps({"what": "disk", "bytes_per_second": round(disk), "threads": threads}))
    report("dropped", dropped, disk, wanted)
    report("limited", limited, disk, wanted, limit_bytes=quarter)


if __name__ == "__main__":
    main()
