"""Speed of a true-width slice of the release on this machine, against the memory bandwidth of the same run.

    python benchmarks/slice.py [--quick] [--layers N] [--experts N] [--prompt N] [--tokens N] [--threads N]
                               [--backend NAME] [--no-reference] [--folder DIR]

makes a slice (hidden size, heads, experts, index and head as released; a few layers, a few experts, random weights) in
a temporary folder and prints JSON lines:

    {"slice_bytes": 4877091200, "dense_bytes": 2144000000, "backend": "cpu", "threads": 2, ...}
    {"what": "decode", "backend": "cpu", "tokens_per_second": 8.1, "num_bytes": 2595000000, "bytes_per_second": 2.1e10,
     "bandwidth": 2.9e10, "fraction_of_bandwidth": 0.72}
    {"what": "prefill", ...}
    {"what": "engram", "rows": 48, "seconds": 0.00011, "fraction_of_decode": 0.001}
    {"what": "ratio", "decode": 31.0, "prefill": 40.2}            the backend over the reference backend

`engram` gathers the n-gram rows that a token of the release needs, from the page cache, and compares with one decode.
`num_bytes` is what one forward must move: dense weights, and each chosen expert once.  The bandwidth is read by the
compiled library with the same threads right before and after, the better of both; each speed is the best of its
forwards, since whatever disturbs a run makes it slower.  `--quick` slices the model of `flash41 make-tiny`, which shows
that the program works and nothing else.
"""

import argparse
import json
import tempfile
import time
from ctypes import byref, c_uint64
from pathlib import Path

import numpy as np
import torch
from moved import Forward, Moved, forwards, prompt_of, sizes_of, slice_in

from flash41 import LLM, __version__
from flash41.checkpoint.loader import open_checkpoint
from flash41.checkpoint.residence import WeightSizes
from flash41.checkpoint.stored import Scope
from flash41.engram.tables import EngramTable, RowReader
from flash41.errors import KernelError
from flash41.kernels.cpu.backend import load_cpu_kernels

STREAM_BYTES, QUICK_STREAM_BYTES = 1 << 30, 64 << 20
ROUNDS = 3
ENGRAM_ROWS = 48
REFERENCE_TOKENS, REFERENCE_PROMPT = 2, 8


def bandwidth(quick: bool) -> float | None:
    """Bytes read per second by as many threads as kernels use; None where the library cannot be built."""
    try:
        library = load_cpu_kernels(None).library
    except KernelError:
        return None
    data, total, found = torch.zeros(QUICK_STREAM_BYTES if quick else STREAM_BYTES, dtype=torch.uint8), c_uint64(), []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        library.call("stream", data.data_ptr(), data.numel(), byref(total))
        found.append(data.numel() / (time.perf_counter() - started))
    return max(found)


def measure(llm: LLM, sizes: WeightSizes, prompt: int, num_tokens: int) -> tuple[Forward, Forward]:
    """The best forward of a prompt and of a token."""
    moved = Moved(llm, sizes)
    list(forwards(llm, moved, prompt_of(prompt, 99), 1))  # builds, decodes, touches
    prefills, decodes = [], []
    for salt in range(2):
        first, *others = forwards(llm, moved, prompt_of(prompt, salt), num_tokens)
        prefills.append(first)
        decodes += others
    fastest = {"key": lambda one: one.seconds}
    return min(prefills, **fastest), min(decodes, **fastest)


def engram_seconds(directory: Path, read: RowReader) -> float:
    """The best time of a gather of a token's rows from a table whose pages are in memory."""
    checkpoint = open_checkpoint(directory, [Scope.BACKBONE])
    parts = checkpoint.engram_table(checkpoint.config.engram.layer_ids[0])
    table = EngramTable(*parts, read)
    dice = np.random.default_rng(1)
    for part in parts:
        part.max()  # touches every page
    found = []
    for _ in range(50):
        row_ids = dice.integers(0, table.num_rows, (1, ENGRAM_ROWS))
        started = time.perf_counter()
        table.gather(row_ids)
        found.append(time.perf_counter() - started)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of a true-width slice against the bandwidth of the same run.")
    parser.add_argument("--quick", action="store_true", help="a slice of a small model; a few seconds")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=16, help="tokens behind it")
    parser.add_argument("--threads", type=int, help="CPU threads; without it torch's choice")
    parser.add_argument("--backend", default="auto", help="kernels, as `flash41 generate --backend` names them")
    parser.add_argument(
        "--no-reference", action="store_true", help="leave out the reference backend, which takes minutes"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the slice is made and removed; without it a temporary folder"
    )
    wish = parser.parse_args()
    if wish.quick:
        wish.prompt, wish.tokens = 8, 3
    if wish.threads:
        torch.set_num_threads(wish.threads)
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(dir=wish.folder) as folder:
        run(wish, slice_in(Path(folder), wish.quick, wish.layers, wish.experts), threads)


def run(wish: argparse.Namespace, directory: Path, threads: int) -> None:
    sizes = sizes_of(directory)
    facts = {"slice_bytes": sizes.total_bytes, "dense_bytes": sizes.dense_bytes, "expert_bytes": sizes.one_expert_bytes}
    print(json.dumps(facts | {"threads": threads, "version": __version__, "torch": torch.__version__}), flush=True)
    seconds: dict[str, list[float]] = {}
    for backend in [wish.backend] if wish.no_reference else [wish.backend, "reference"]:
        slow = backend == "reference" and not wish.quick
        prompt, num_tokens = (REFERENCE_PROMPT, REFERENCE_TOKENS) if slow else (wish.prompt, wish.tokens)
        roof = bandwidth(wish.quick)
        llm = LLM(directory, backend=backend, threads=threads, max_num_seqs=1, max_model_len=512, weights="resident")
        found = measure(llm, sizes, prompt, num_tokens)
        after = bandwidth(wish.quick)
        roof = None if roof is None or after is None else max(roof, after)
        name, read_rows = llm._model.kernels.name, llm._model.kernels.engram_rows
        for what, one, num_rows in (("prefill", found[0], prompt), ("decode", found[1], 1)):
            rate = one.num_bytes / one.seconds
            line = {
                "what": what,
                "backend": name,
                "rows": num_rows,
                "tokens_per_second": round(num_rows / one.seconds, 3),
                "num_bytes": one.num_bytes,
                "bytes_per_second": round(rate),
                "bandwidth": None if roof is None else round(roof),
                "fraction_of_bandwidth": None if roof is None else round(rate / roof, 4),
            }
            print(json.dumps(line), flush=True)
            seconds.setdefault(what, []).append(one.seconds / num_rows)
        del llm
        if len(seconds["decode"]) == 1:
            taken = engram_seconds(directory, read_rows)
            share = round(taken / found[1].seconds, 5)
            line = {"what": "engram", "rows": ENGRAM_ROWS, "seconds": round(taken, 6), "fraction_of_decode": share}
            print(json.dumps(line), flush=True)
    if not wish.no_reference:
        print(json.dumps({"what": "ratio"} | {what: round(two / one, 1) for what, (one, two) in seconds.items()}))


if __name__ == "__main__":
    main()
