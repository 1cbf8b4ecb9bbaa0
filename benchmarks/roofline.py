"""How near compiled kernels come to what this machine's memory and arithmetic allow.

    python benchmarks/roofline.py [--quick] [--json] [--threads N] [--backend cpu:LEVEL]

Decoding is bound by memory: the time of a product with few rows is the time in which its weight can be read.  So the
read bandwidth is measured in the same run with the same threads, weights are cold (a rotation of copies larger than any
cache), and each line says which share of that bandwidth a kernel reaches:

    {"kernel": "fp8_linear", "rows": 1, "threads": 2, "isa": "avx2", "seconds": 0.0011, "num_bytes": 20992000,
     "bytes_per_second": 1.9e10, "fraction_of_bandwidth": 0.71, "flops": 3.8e10, "fraction_of_torch": 11.2}

With many rows arithmetic is the limit: `flops` counts operations per second, and `fraction_of_torch` compares them with
torch's BF16 product of the same shape in the same run (null where torch has no such product).  Every number is the best
of its rounds, since whatever disturbs a run makes it slower.  The first line is the bandwidth itself (kernel `stream`).
Where the library of the level cannot be built or run, one line says why: {"skipped": "CPU level: got ..."}.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_uint64
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from flash41.cache.rows import RowBuffer
from flash41.errors import KernelError
from flash41.kernels.cpu.backend import CpuKernels
from flash41.kernels.interface import ExpertWeights
from flash41.kernels.select import select_kernels
from flash41.numerics.scaled import (
    ElementFormat,
    Quantized,
    ScaleFormat,
    fake_fp4_32,
    quantize_fp4_16,
    quantize_fp4_32,
    quantize_fp8_row,
)
from flash41.numerics.stored_rows import PACKED, PagedRows, RowFormat, RowStack

ROWS = (1, 2, 4, 6, 16, 64, 512)
QUICK_ROWS = (1, 6, 64)
COLD_BYTES, QUICK_COLD_BYTES = 1 << 30, 192 << 20
"""Bytes of the rotation: many times a last-level cache."""
ROUND_SECONDS, QUICK_ROUND_SECONDS = 0.3, 0.02
ROUNDS, QUICK_ROUNDS = 7, 3
HIDDEN, INNER, NUM_EXPERTS, VOCAB = 5120, 2304, 6, 129_280
HEADS, HEAD_DIM, LIST, WINDOW = 64, 512, 640, 128
INDEX_HEADS, INDEX_DIM, QUICK_PLANE, PLANE = 32, 128, 8192, 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One measurement."""

    kernel: str
    rows: int
    threads: int
    isa: str
    seconds: float
    num_bytes: int
    bytes_per_second: float
    fraction_of_bandwidth: float
    flops: float | None = None
    fraction_of_torch: float | None = None


class Bench:
    """Measures kernels with one number of threads."""

    def __init__(self, kernels: CpuKernels, quick: bool) -> None:
        self.kernels = kernels
        self.quick = quick
        self.rows = QUICK_ROWS if quick else ROWS
        self._bandwidth = 0.0

    def best(self, run: Callable[[], object]) -> float:
        """Seconds of one call: the best of some rounds, each long enough to be timed."""
        run()
        started = time.perf_counter()
        run()
        once = time.perf_counter() - started
        wanted = QUICK_ROUND_SECONDS if self.quick else ROUND_SECONDS
        calls = max(1, min(200, int(wanted / max(once, 1e-6))))
        found = []
        for _ in range(QUICK_ROUNDS if self.quick else ROUNDS):
            started = time.perf_counter()
            for _ in range(calls):
                run()
            found.append((time.perf_counter() - started) / calls)
        return min(found)

    def line(
        self, kernel: str, rows: int, seconds: float, num_bytes: int, work: float = 0.0, torch_seconds: float = 0.0
    ) -> Line:
        rate = num_bytes / seconds
        return Line(
            kernel=kernel,
            rows=rows,
            threads=torch.get_num_threads(),
            isa=self.kernels.library.level.value,
            seconds=seconds,
            num_bytes=num_bytes,
            bytes_per_second=rate,
            fraction_of_bandwidth=round(rate / self._bandwidth, 4),
            flops=work / seconds if work else None,
            fraction_of_torch=round(torch_seconds / seconds, 3) if torch_seconds else None,
        )

    def copies(self, num_bytes: int) -> int:
        """Copies of a weight that make a rotation cold."""
        return max(2, (QUICK_COLD_BYTES if self.quick else COLD_BYTES) // num_bytes)

    def stream(self) -> Line:
        """The roof: bytes read and folded, as fast as the machine gives them."""
        data = torch.zeros(QUICK_COLD_BYTES if self.quick else COLD_BYTES, dtype=torch.uint8)
        total = c_uint64()
        seconds = self.best(lambda: self.kernels.library.call("stream", data.data_ptr(), data.numel(), byref(total)))
        self._bandwidth = data.numel() / seconds
        return self.line("stream", 1, seconds, data.numel())

    def linears(self) -> Iterator[Line]:
        """Products with FP8, FP4 and BF16 weights."""
        for name, weights in (
            ("fp8_linear", rotation(lambda: fp8(4096, HIDDEN), self.copies(4096 * HIDDEN))),
            ("fp4_linear", rotation(lambda: fp4(INNER, HIDDEN), self.copies(INNER * HIDDEN // 2))),
        ):
            torch_seconds = {} if self.quick else self._torch(*weights[0].shape)
            for rows in self.rows:
                x, following = bf16(rows, HIDDEN), itertools.cycle(weights)
                seconds = self.best(lambda x=x, following=following: self.kernels.scaled_linear(x, next(following)))
                height, width = weights[0].shape
                work = 2.0 * rows * height * width
                yield self.line(name, rows, seconds, weights[0].num_bytes, work, torch_seconds.get(rows, 0.0))
        head = bf16(VOCAB // (8 if self.quick else 1), HIDDEN)
        seconds = self.best(lambda: self.kernels.linear(bf16(1, HIDDEN), head, torch.float32))
        yield self.line("lm_head", 1, seconds, head.nbytes, 2.0 * head.numel())

    def _torch(self, height: int, width: int) -> dict[int, float]:
        weight = bf16(height, width)
        inputs = [bf16(rows, width) for rows in self.rows if rows >= 64]
        return {len(x): self.best(lambda x=x: torch.nn.functional.linear(x, weight)) for x in inputs}

    def experts(self) -> Iterator[Line]:
        """All experts of a layer in one call, every row at the same six."""
        weights = [expert(fp4) for _ in range(self.copies(3 * HIDDEN * INNER // 2))]
        shared = expert(fp8)
        size = sum(w.num_bytes for w in (weights[0].w1, weights[0].w3, weights[0].w2))
        shared_size = sum(w.num_bytes for w in (shared.w1, shared.w3, shared.w2))
        for rows in (1, 6) if self.quick else (1, 2, 4, 6, 16):
            x, start = bf16(rows, HIDDEN), itertools.count(0, NUM_EXPERTS)
            ids, share = torch.arange(NUM_EXPERTS).repeat(rows, 1), torch.full((rows, NUM_EXPERTS), 0.2)

            def run(x: Tensor = x, start: Iterator[int] = start, ids: Tensor = ids, share: Tensor = share) -> None:
                first = next(start)
                self.kernels.experts(
                    x, ids, share, lambda number: weights[(first + number) % len(weights)], shared, 10.0, True
                )

            work = 2.0 * rows * 3 * HIDDEN * INNER * (NUM_EXPERTS + 1)
            yield self.line("experts", rows, self.best(run), NUM_EXPERTS * size + shared_size, work)

    def attention(self) -> Iterator[Line]:
        """One token, 640 rows of its context, all heads: 128 rows of a window, the others of a BF16 or an FP4 plane."""
        num_rows, window = (1 << 14) if self.quick else (1 << 17), bf16(WINDOW, HEAD_DIM)
        q, counts, sink = bf16(1, HEADS, HEAD_DIM), torch.tensor([LIST]), torch.zeros(HEADS)
        chosen = [WINDOW + torch.randint(0, num_rows, (1, LIST - WINDOW)) for _ in range(64)]
        lists = itertools.cycle([torch.cat((torch.arange(WINDOW).unsqueeze(0), some), 1) for some in chosen])
        work = 4.0 * LIST * HEADS * HEAD_DIM
        for name, plane in (
            ("sparse_attention", plane_of(bf16(num_rows, HEAD_DIM))),
            ("sparse_attention_fp4", plane_of(quantize_fp4_16(bf16(num_rows, HEAD_DIM)))),
        ):
            stack = RowStack(own=window, plane=plane.rows)
            seconds = self.best(
                lambda stack=stack: self.kernels.sparse_attention(q, stack, next(lists), counts, sink, HEAD_DIM**-0.5)
            )
            row_bytes = plane.num_bytes // num_rows
            yield self.line(name, 1, seconds, WINDOW * HEAD_DIM * 2 + (LIST - WINDOW) * row_bytes, work)

    def index(self) -> Iterator[Line]:
        """Scores of one query against a whole plane, and the choice of rows."""
        num_keys = QUICK_PLANE if self.quick else PLANE
        q, weights = fake_fp4_32(bf16(1, 1, INDEX_HEADS, INDEX_DIM)), torch.rand(1, 1, INDEX_HEADS)
        work, pages = 2.0 * num_keys * INDEX_HEADS * INDEX_DIM, torch.zeros(1, 1, dtype=torch.int64)
        made = [quantize_fp4_32(bf16(num_keys, INDEX_DIM)) for _ in range(2 if self.quick else 8)]
        for name, rows in (
            ("index_scores", [one.dequantize(torch.bfloat16) for one in made]),
            ("index_scores_fp4", made),
            ("index_scores_fp8", [quantize_fp8_row(one.dequantize(torch.bfloat16)) for one in made]),
        ):
            planes = [plane_of(one) for one in rows]
            keys = itertools.cycle([
                PagedRows(rows=one.rows, pages=pages, rows_per_page=num_keys, num_rows=num_keys) for one in planes
            ])  # fmt: skip
            seconds = self.best(lambda keys=keys: self.kernels.index_scores(q, next(keys), weights))
            yield self.line(name, 1, seconds, planes[0].num_bytes, work)
        scores, allowed = torch.rand(1, num_keys), torch.ones(1, num_keys, dtype=torch.bool)
        seconds = self.best(lambda: self.kernels.select_rows(scores, allowed, 512))
        yield self.line("select_rows", 1, seconds, scores.nbytes + allowed.nbytes)

    def lines(self) -> Iterator[Line]:
        """Everything, the roof first."""
        yield self.stream()
        yield from self.linears()
        yield from self.experts()
        yield from self.attention()
        yield from self.index()


def rotation(make: Callable[[], Quantized], count: int) -> list[Quantized]:
    """Copies of one weight at addresses of their own."""
    first = make()
    return [
        Quantized(
            codes=first.codes.clone(),
            scales=first.scales.clone(),
            element=first.element,
            scale=first.scale,
            group=first.group,
        )
        for _ in range(count)
    ]


def plane_of(rows: Tensor | Quantized) -> RowBuffer:
    """A plane that holds rows in the format they come in."""
    formats = {packed: row_format for row_format, packed in PACKED.items()}
    if isinstance(rows, Tensor):
        row_format = RowFormat.BF16
    else:
        channels = rows.shape[-1]
        group = None if rows.group[1] == channels else rows.group[1]
        row_format = formats[(rows.element, rows.scale, group)]
    buffer = RowBuffer(rows.shape[0], rows.shape[1], row_format)
    buffer.write(torch.arange(rows.shape[0]), rows)
    return buffer


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


def fp8(height: int, width: int) -> Quantized:
    codes = torch.randint(0, 0x7F, (height, width), dtype=torch.uint8)
    scales = torch.randint(113, 120, (height // 32, width // 32), dtype=torch.uint8)
    return Quantized(codes=codes, scales=scales, element=ElementFormat.E4M3, scale=ScaleFormat.E8M0, group=(32, 32))


def fp4(height: int, width: int) -> Quantized:
    codes = torch.randint(0, 256, (height, width // 2), dtype=torch.uint8)
    scales = torch.randint(117, 124, (height, width // 32), dtype=torch.uint8)
    return Quantized(codes=codes, scales=scales, element=ElementFormat.E2M1, scale=ScaleFormat.E8M0, group=(1, 32))


def expert(make: Callable[[int, int], Quantized]) -> ExpertWeights:
    return ExpertWeights(w1=make(INNER, HIDDEN), w3=make(INNER, HIDDEN), w2=make(HIDDEN, INNER))


def text(line: Line) -> str:
    flops = "" if line.flops is None else f"{line.flops / 1e9:8.1f} GFLOP/s"
    beside = "" if line.fraction_of_torch is None else f"  {line.fraction_of_torch:.2f} of torch"
    return (
        f"{line.kernel:17} rows {line.rows:4}  {line.threads} threads  {line.isa:10} {line.seconds * 1e6:10.0f} us"
        f"  {line.bytes_per_second / 1e9:6.2f} GB/s  {line.fraction_of_bandwidth:6.3f} of bandwidth  {flops}{beside}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compiled kernels against the memory and arithmetic of this machine.")
    parser.add_argument("--quick", action="store_true", help="a few seconds; good enough to see a factor of two")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of text")
    parser.add_argument("--threads", type=int, help="measure with this many threads only; else with one and with all")
    parser.add_argument("--backend", default="cpu", help="cpu or cpu:LEVEL")
    arguments = parser.parse_args()
    try:
        kernels = select_kernels(arguments.backend)
    except KernelError as error:
        reason = json.dumps({"skipped": str(error)}) if arguments.json else f"skipped: {error}"
        sys.stdout.write(f"{reason}\n")
        return
    if not isinstance(kernels, CpuKernels):
        parser.error(f"--backend: got {arguments.backend!r}, expected cpu or cpu:LEVEL")
    threads = [arguments.threads] if arguments.threads else sorted({1, torch.get_num_threads()})
    torch.manual_seed(0)
    for number in threads:
        torch.set_num_threads(number)
        for line in Bench(kernels, arguments.quick).lines():
            sys.stdout.write((json.dumps(asdict(line)) if arguments.json else text(line)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
