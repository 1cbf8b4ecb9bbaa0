"""Decode speed of the embedded default, with the reference kernels unless told: one request alone, and eight together.

    python benchmarks/decode.py [--quick] [--model DIR] [--tokens N] [--rounds N] [--threads N] [--backend NAME]

prints JSON lines, one per measurement and a last one that joins them:

    {"num_requests": 1, "num_tokens": 128, "seconds": 2.31, "tokens_per_second": 55.4}
    {"num_requests": 8, "num_tokens": 1024, "seconds": 5.12, "tokens_per_second": 200.0}
    {"one": 55.4, "eight": 200.0, "ratio": 3.61, "rounds": 3, "backend": "reference", "threads": 1, "version": ...}

All prompts are read in the first step and every request decodes in every later one, so the time from the first token
to the last is decoding alone; `num_tokens` counts the tokens in it.  `ratio` is eight over one.  Both are measured in
turns within one run, so that a busy machine slows both alike, and each speed is the best of its rounds, since whatever
disturbs a run makes it slower.

The wish for 30 tokens/s of one request on an idle core was made for the random model that `flash41 make-tiny DIR`
writes; `--model DIR` measures it.  The embedded default is twice as wide.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from flash41 import LLM, SamplingParams, __version__

MANY = 8
PROMPT_TOKENS = 16
FULL = (128, 3)
"""Tokens of an answer behind its first, and rounds."""
QUICK = (24, 1)
"""The same with --quick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run."""

    num_requests: int
    num_tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds

    def line(self) -> dict[str, float]:
        return {
            "num_requests": self.num_requests,
            "num_tokens": self.num_tokens,
            "seconds": round(self.seconds, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
        }


def measure(llm: LLM, num_requests: int, num_tokens: int) -> Measurement:
    """Decodes `num_tokens` tokens behind the first one of each of `num_requests` answers."""
    params = SamplingParams(max_tokens=num_tokens + 1, seed=1, ignore_eos=True)
    prompts = [[3 + number + position for position in range(PROMPT_TOKENS)] for number in range(num_requests)]
    timings = llm.generate(prompts, params)[0].timings
    return Measurement(
        num_requests=num_requests,
        num_tokens=num_requests * num_tokens,
        seconds=timings.total_seconds - timings.first_token_seconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode speed of a model, one request and eight.")
    parser.add_argument("--quick", action="store_true", help="a few seconds; good enough to see a factor of two")
    parser.add_argument("--model", type=Path, metavar="DIR", help="checkpoint; without it the embedded default")
    parser.add_argument("--tokens", type=int, help="tokens of an answer behind its first")
    parser.add_argument("--rounds", type=int, help="measurements of each kind, of which the best counts")
    parser.add_argument("--threads", type=int, help="CPU threads; without it as `flash41 generate` does")
    parser.add_argument("--backend", default="reference", help="kernels, as `flash41 generate --backend` names them")
    arguments = parser.parse_args()
    num_tokens, num_rounds = QUICK if arguments.quick else FULL
    num_tokens, num_rounds = arguments.tokens or num_tokens, arguments.rounds or num_rounds
    llm = LLM(
        arguments.model,
        max_num_seqs=MANY,
        max_model_len=PROMPT_TOKENS + num_tokens + 1,
        threads=arguments.threads,
        backend=arguments.backend,
    )
    measure(llm, MANY, 2)  # reads the files and decodes the weights
    best = {1: 0.0, MANY: 0.0}
    for _ in range(num_rounds):
        for num_requests in best:
            found = measure(llm, num_requests, num_tokens)
            best[num_requests] = max(best[num_requests], found.tokens_per_second)
            print(json.dumps(found.line()), flush=True)
    summary = {
        "one": round(best[1], 2),
        "eight": round(best[MANY], 2),
        "ratio": round(best[MANY] / best[1], 3),
        "rounds": num_rounds,
        "backend": arguments.backend,
        "threads": torch.get_num_threads(),
        "version": __version__,
        "torch": torch.__version__,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
