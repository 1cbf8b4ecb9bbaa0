"""generation_config.json: nothing here reads it, but one with other token ids belongs to another model.

Engines that do read it would never see the end of an answer.  spec: config.md section 1.
"""

from collections.abc import Iterator
from pathlib import Path

from flash41.checkpoint.faults import Fault, FaultKind, mismatch
from flash41.checkpoint.headers import read_identity
from flash41.checkpoint.strict_json import parse_object
from flash41.config.architecture import ModelConfig

GENERATION_FILE = "generation_config.json"
MOST_BYTES = 1 << 20


def generation_faults(directory: Path, config: ModelConfig | None) -> Iterator[Fault]:
    """What is wrong with a generation_config.json that is there; token ids are compared where there is a config."""
    path = directory / GENERATION_FILE
    try:
        size = read_identity(path).file_bytes
        if size > MOST_BYTES:
            yield _fault(mismatch(GENERATION_FILE, size, f"at most {MOST_BYTES} bytes"))
            return
        document = parse_object(path.read_bytes())
    except (OSError, ValueError) as error:
        yield _fault(f"{GENERATION_FILE}: {error}, expected strict JSON")
        return
    if config is None:
        return
    ids = {"bos_token_id": config.tokens.bos, "eos_token_id": config.tokens.eos, "pad_token_id": config.tokens.pad}
    for key, expected in ids.items():
        found = document.get(key, expected)
        # Several ends are allowed, if the model's own is one of them.
        if found != expected and not (isinstance(found, list) and expected in found):
            yield _fault(mismatch(f"{GENERATION_FILE}: {key}", found, f"{expected} as in config.json"))


def _fault(message: str) -> Fault:
    return Fault(kind=FaultKind.GENERATION, message=message, names=(GENERATION_FILE,))
