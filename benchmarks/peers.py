"""Speed of a true-width slice of the release beside other engines on the same CPU, in turns, in one run.

    python benchmarks/peers.py [--quick] [--no-engram] [--peer NAME]... [--python PATH] [--layers N] [--experts N]
                               [--prompt N] [--tokens N] [--turns N] [--threads N] [--backend NAME] [--patience SECONDS]
                               [--at-least RATIO] [--folder DIR]

makes a slice as `slice.py` does and prints JSON lines:

    {"slice_bytes": 4177000000, "engram": true, "prompt": 32, "tokens": 6, "threads": 2, "backend": "cpu", ...}
    {"peer": "mlx-lm", "version": "0.32.2", "skipped": "ValueError: Layers [1] use engram memory, ..."}
    {"peer": "ftllm", "version": "1.9.0", "what": "prefill", "ours": 7.1, "theirs": 0.9, "ratio": 7.9}
    {"peer": "ftllm", "version": "1.9.0", "what": "decode", "ours": 1.4, "theirs": 0.2, "ratio": 7.0, "same_tokens": 6}
    {"what": "ours", "prefill": 7.1, "decode": 1.4}

`ours` and `theirs` are tokens per second from the medians of turns that alternate: the same prompt ids, greedy, and in
each turn others than before, so that no prefix is reused.  `same_tokens` counts the leading tokens that both chose in
the last turn.  A peer runs in a process of its own, with the interpreter that `--python` names, and is stopped while
the other side computes.  One that is not installed, cannot open the slice, fails, or takes more than `--patience`
seconds for a turn is skipped with the reason, its own words where it has any; where none is measured, a last line has
our speed alone.  Nothing is downloaded.  `--no-engram` leaves out the n-gram table, for peers without one.  The exit
status is 1 where our decode is below `--at-least` times that of a measured peer.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import torch
from moved import prompt_of, sizes_of, slice_in
from peer_process import PeerError, PeerProcess
from peer_turns import PEERS

from flash41 import LLM, SamplingParams, __version__
from flash41.errors import Flash41Error

QUICK_PROMPT, QUICK_TOKENS, QUICK_TURNS = 8, 3, 2


@dataclass(slots=True)
class Times:
    """Seconds of each prompt and of each token behind one."""

    prefills: list[float] = field(default_factory=list)
    decodes: list[float] = field(default_factory=list)

    def add(self, seconds: list[float]) -> None:
        self.prefills.append(seconds[0])
        self.decodes += seconds[1:]

    def rates(self, num_rows: int) -> dict[str, float]:
        """Tokens per second, from medians."""
        return {
            "prefill": num_rows / statistics.median(self.prefills),
            "decode": 1 / statistics.median(self.decodes),
        }


def our_answer(llm: LLM, prompt: list[int], num_tokens: int) -> tuple[list[float], list[int]]:
    """Seconds and ids of the tokens behind a prompt."""
    seconds, tokens, last = [], [], time.perf_counter()
    for event in llm.stream(prompt, SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)):
        now = time.perf_counter()
        seconds.append(now - last)
        tokens.append(event.token.token_id)
        last = now
    return seconds, tokens


def num_same(left: list[int], right: list[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=True)))


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def beside(llm: LLM, peer: PeerProcess, wish: argparse.Namespace) -> tuple[Times, Times, int]:
    """Times of both sides from turns that alternate, and how many of the last turn's tokens both chose first."""
    ours, theirs, same = Times(), Times(), 0
    for turn in range(wish.turns + 1):
        prompt = prompt_of(wish.prompt, turn)
        seconds, tokens = our_answer(llm, prompt, wish.tokens)
        their_seconds, their_tokens = peer.answer(prompt, wish.tokens)
        note(f"turn {turn} of {wish.turns}: ours {sum(seconds):.2f} s, theirs {sum(their_seconds):.2f} s")
        if turn:  # the first one builds, decodes, touches
            ours.add(seconds)
            theirs.add(their_seconds)
        same = num_same(tokens, their_tokens)
    return ours, theirs, same


def measured(llm: LLM, name: str, directory: Path, wish: argparse.Namespace) -> Iterator[dict[str, object]]:
    """The lines of one peer."""
    note(f"{name}: loading")
    peer = PeerProcess(wish.python, name, directory, wish.threads, wish.patience)
    facts: dict[str, object] = {"peer": name}
    try:
        peer.load()
        ours, theirs, same = beside(llm, peer, wish)
    except PeerError as error:
        yield facts | {"version": peer.version, "skipped": str(error)}
        return
    finally:
        peer.close()
    facts["version"] = peer.version
    our_rates, their_rates = ours.rates(wish.prompt), theirs.rates(wish.prompt)
    for what, rate in our_rates.items():
        line = {"what": what, "ours": round(rate, 4), "theirs": round(their_rates[what], 4)}
        more = {"same_tokens": same} if what == "decode" else {}
        yield facts | line | {"ratio": round(rate / their_rates[what], 3)} | more


def alone(llm: LLM, wish: argparse.Namespace) -> dict[str, object]:
    times = Times()
    for turn in range(wish.turns + 1):
        seconds, _ = our_answer(llm, prompt_of(wish.prompt, turn), wish.tokens)
        if turn:
            times.add(seconds)
    return {"what": "ours"} | {what: round(rate, 4) for what, rate in times.rates(wish.prompt).items()}


def run(wish: argparse.Namespace, directory: Path) -> int:
    """The exit status."""
    llm = LLM(
        directory,
        backend=wish.backend,
        threads=wish.threads,
        max_num_seqs=1,
        max_model_len=wish.prompt + wish.tokens,
        weights="resident",
        prefix_cache=False,
    )
    facts = {"slice_bytes": sizes_of(directory).total_bytes, "engram": wish.engram, "prompt": wish.prompt}
    facts |= {"tokens": wish.tokens, "turns": wish.turns, "threads": wish.threads, "backend": llm._model.kernels.name}
    print(json.dumps(facts | {"version": __version__, "torch": torch.__version__}), flush=True)
    ratios = []
    for name in wish.peer:
        for line in measured(llm, name, directory, wish):
            print(json.dumps(line), flush=True)
            if line.get("what") == "decode":
                ratios.append(float(str(line["ratio"])))
    if not ratios:
        print(json.dumps(alone(llm, wish)), flush=True)
    return int(any(ratio < wish.at_least for ratio in ratios))


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Speed of a true-width slice beside other engines, in turns.")
    parser.add_argument("--quick", action="store_true", help="a slice of a small model; a few seconds")
    parser.add_argument("--no-engram", dest="engram", action="store_false", help="a slice without n-gram table")
    parser.add_argument("--peer", action="append", choices=tuple(PEERS), help="only this one; may be repeated")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="interpreter that has the peers")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=6, help="tokens behind it, the prompt's own among them")
    parser.add_argument("--turns", type=int, default=3, help="turns of each side, behind one that does not count")
    parser.add_argument("--threads", type=int, help="CPU threads of each side; without it torch's choice")
    parser.add_argument("--backend", default="auto", help="our kernels, as `flash41 generate --backend` names them")
    parser.add_argument("--patience", type=float, default=600, help="seconds a peer may load, or compute one turn")
    parser.add_argument("--at-least", type=float, default=0, help="exit status 1 where our decode is below this ratio")
    parser.add_argument(
        "--folder", type=Path, help="where the slice is made and removed; without it a temporary folder"
    )
    return parser


def main() -> None:
    parser = options()
    wish = parser.parse_args()
    if wish.quick:
        wish.prompt, wish.tokens, wish.turns = QUICK_PROMPT, QUICK_TOKENS, QUICK_TURNS
    least = {"layers": 1, "experts": 1, "prompt": 2, "tokens": 2, "turns": 1, "threads": 1}
    wrong = [
        f"--{name}: got {getattr(wish, name)}, expected at least {bound}"
        for name, bound in least.items()
        if getattr(wish, name) is not None and getattr(wish, name) < bound
    ]
    if not wish.patience > 0:
        wrong.append(f"--patience: got {wish.patience}, expected more than 0 seconds")
    if not wish.python.is_file() or not os.access(wish.python, os.X_OK):
        wrong.append(f"--python: got {wish.python}, expected a Python interpreter")
    if wish.folder is not None and not wish.folder.is_dir():
        wrong.append(f"--folder: got {wish.folder}, expected a folder")
    if wrong:
        parser.error("; ".join(wrong))
    if wish.threads:
        torch.set_num_threads(wish.threads)
    wish.threads = torch.get_num_threads()
    wish.peer = list(dict.fromkeys(wish.peer or PEERS))
    with tempfile.TemporaryDirectory(dir=wish.folder) as folder:
        try:
            directory = slice_in(Path(folder), wish.quick, wish.layers, wish.experts, wish.engram)
            status = run(wish, directory)
        except Flash41Error as error:
            parser.error(str(error))
    sys.exit(status)


if __name__ == "__main__":
    main()
