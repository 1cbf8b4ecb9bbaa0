"""Options that several commands share, declared once; those of an engine together are in `engine_options`."""

import re
from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    Path | None,
    typer.Option("--model", metavar="DIR", help="Checkpoint directory. [default: the small trained one of flash41]"),
]
Profile = Annotated[
    str,
    typer.Option("--profile", help="Numerical profile: vendor (the released model), atom, fp32 or demo."),
]
KvCacheDtype = Annotated[
    str | None,
    typer.Option("--kv-cache-dtype", help="Storage of latent rows: bf16 or fp4. [default: the profile's]"),
]
IndexCacheDtype = Annotated[
    str | None,
    typer.Option("--index-cache-dtype", help="Storage of index keys: fp4, bf16 or fp8. [default: the profile's]"),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", help="Longest request in tokens, prompt and answer. [default: 8192]"),
]
MaxNumBatchedTokens = Annotated[
    int,
    typer.Option(
        "--max-num-batched-tokens",
        help="Rows of one forward; a longer prompt is read in chunks, and requests beyond it take turns.",
    ),
]
MaxNumSeqs = Annotated[int, typer.Option("--max-num-seqs", help="Requests that are computed side by side.")]
BlockSize = Annotated[
    int | None,
    typer.Option("--block-size", help="Tokens per page of the cache. [default: 256, or the next size that fits]"),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="BYTES",
        help="Memory of pages, states, state images and rows of pictures: 64M, 2G, or bytes. "
        "[default: all requests at full length]",
    ),
]
PrefixCache = Annotated[
    bool,
    typer.Option(
        "--prefix-cache/--no-prefix-cache",
        help="Keep pages and state images, so that what a prompt shares with earlier texts is not read again.",
    ),
]
StateImageInterval = Annotated[
    int,
    typer.Option(
        "--state-image-interval",
        metavar="TOKENS",
        help="Distance of state images in a long prompt; its end and that of its answer have one anyway.",
    ),
]
DecoderReplay = Annotated[
    bool,
    typer.Option(
        "--decoder-replay",
        help="APPROXIMATE: late layers read only the last window of a prompt. Faster prompts, other answers.",
    ),
]
PrefixReplay = Annotated[
    bool,
    typer.Option(
        "--prefix-replay",
        help="APPROXIMATE: recompute the last window of a cached prefix instead of keeping state images.",
    ),
]
Images = Annotated[
    bool,
    typer.Option("--images/--no-images", help="Open the image encoder, so that prompts may hold pictures."),
]
Draft = Annotated[
    str,
    typer.Option(
        "--draft",
        metavar="off|on|adaptive",
        help="Draft tokens with the checkpoint's own stages; adaptive drafts as many as measured speed makes worth it.",
    ),
]
DraftAccept = Annotated[
    str | None,
    typer.Option(
        "--draft-accept",
        metavar="shared-noise|rejection",
        help="shared-noise keeps a seeded text as it is without drafts; rejection keeps its distribution only. "
        "[default: shared-noise]",
    ),
]
Backend = Annotated[
    str,
    typer.Option(
        "--backend", help="Kernels: auto, reference, cpu, or cpu:LEVEL: portable, avx2, avx512, avx512bf16, amx."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", help="CPU threads. [default: 1 for small models, else torch's choice]"),
]
Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="auto|resident|mapped",
        help="resident reads all weights into memory at the start, mapped leaves them to the files; auto is resident "
        "where they fit, else it keeps what every step reads and the hottest experts.",
    ),
]
WeightsMemory = Annotated[
    str | None,
    typer.Option(
        "--weights-memory",
        metavar="BYTES",
        help="Memory for weights: 64M, 20G, or bytes. [default: 80 % of what is available, less the caches]",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing target.")]

INTEGER = re.compile(r"-?[0-9]{1,100}")
"""Python refuses to read numbers of thousands of digits, with an error of its own."""

SIZE = re.compile(r"([0-9]{1,100})([KMGT]?)")
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def num_bytes(text: str, option: str) -> int:
    """The bytes of ``64M``; units are powers of 1024.  A usage error names the option, the text and what it may be."""
    found = SIZE.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter(f"got {text!r}, expected bytes above 0 such as 64M, 2G or 65536", param_hint=option)
    return int(found[1]) * UNITS[found[2]]


def integers(text: str, option: str) -> list[int]:
    """The numbers of ``1,2,3``; a usage error names the option and the part that is no number."""
    numbers = []
    for part in text.replace(" ", ",").split(","):
        if not part:
            continue
        if not INTEGER.fullmatch(part):
            raise typer.BadParameter(f"got {part!r}, expected integers separated by commas", param_hint=option)
        numbers.append(int(part))
    if not numbers:
        raise typer.BadParameter(f"got {text!r}, expected at least one integer", param_hint=option)
    return numbers
