"""One peer in a process of its own: loads a checkpoint, then answers prompts given as ids, timing each token.

    PEER_PYTHON peer_turns.py NAME DIRECTORY THREADS      NAME is mlx-lm or ftllm

`peers.py` starts it with the peer's interpreter, so it imports the standard library and the peer, nothing else.  One
line of JSON each way: first the peer's {"version": ..., "loaded": true} or {"version": ..., "skipped": reason}, then
for each {"prompt": [...], "num_tokens": N} on its input {"seconds": [...], "tokens": [...]}, one time for each token,
the prompt's in the first.  Whatever the peer prints goes to the standard error.
"""

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Answer = Callable[[list[int], int], Iterator[int]]
"""Greedy tokens behind a prompt, as they come."""

POLL_SECONDS = 0.0002
ERROR_CHARACTERS = 200


def mlx_lm(directory: Path, _threads: int) -> Answer:
    """mlx-lm on the CPU; how many threads an operation has, MLX decides."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    model, _ = load_model(directory)

    def answer(prompt: list[int], num_tokens: int) -> Iterator[int]:
        for token, _ in generate_step(mx.array(prompt), model, max_tokens=num_tokens):
            yield int(token)

    return answer


def ftllm(directory: Path, threads: int) -> Answer:
    """ftllm with its CPU device, through the calls that its own benchmark makes."""
    from ftllm import llm

    llm.set_cpu_threads(threads)
    llm.set_device_map("cpu")
    model, library = llm.model(str(directory)), llm.fastllm_lib

    def answer(prompt: list[int], num_tokens: int) -> Iterator[int]:
        ids, greedy = (ctypes.c_int * len(prompt))(*prompt), (False, 1.0, 1, 1.0, 1.0, False)
        handle = library.launch_response_llm_model(
            model.model, len(prompt), ids, num_tokens, num_tokens, *greedy, *model.stop_token_ctypes(None)
        )
        while True:
            while not library.can_fetch_response_llm_model(model.model, handle):
                time.sleep(POLL_SECONDS)
            token = library.fetch_response_llm_model(model.model, handle)
            if token < 0:
                return
            yield token

    return answer


PEERS = {"mlx-lm": ("mlx_lm", mlx_lm), "ftllm": ("ftllm", ftllm)}
"""Distribution -> its package, and how it is opened."""


def version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def timed(answer: Answer, prompt: list[int], num_tokens: int) -> dict[str, Any]:
    seconds, tokens, last = [], [], time.perf_counter()
    for token in answer(prompt, num_tokens):
        now = time.perf_counter()
        seconds.append(now - last)
        tokens.append(token)
        last = now
    return {"seconds": seconds, "tokens": tokens}


def main() -> None:
    name, directory, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    with os.fdopen(os.dup(0)) as turns, os.fdopen(os.dup(1), "w") as out, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # a peer that wants a key pressed gets none
        os.dup2(2, 1)

        def say(line: dict[str, Any]) -> None:
            out.write(json.dumps(line) + "\n")
            out.flush()

        package, opened = PEERS[name]
        sys.path.pop(0)  # modules of this folder are nobody's
        version = version_of(name)
        if importlib.util.find_spec(package) is None:
            say({"version": version, "skipped": "not installed"})
            return
        try:
            answer = opened(directory, threads)
            say({"version": version, "loaded": True})
            for line in turns:
                say(timed(answer, **json.loads(line)))
        except Exception as error:  # a peer may raise anything, and this is what there is to say about it
            reason = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
            say({"version": version, "skipped": reason})


if __name__ == "__main__":
    main()
