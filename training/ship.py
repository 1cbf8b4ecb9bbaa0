"""The weights of a run put where the package keeps the embedded default.

    python -m training.ship DIR/state.safetensors [--card FILE] [--to DIR]

writes the masters of a state in the released format, with their config and tokenizer, in the place of what lies there;
the same state gives the same bytes.  A card that lies there stays, unless `--card` names another one: what it promises
is measured by `flash41 canary` and said by whoever ships (tests/system/test_canary_scores.py reads it).
"""

import argparse
import sys
from pathlib import Path

from flash41.checkpoint.schema import schema
from flash41.checkpoint.strict_json import parse_object
from flash41.errors import CheckpointError, Flash41Error, complaint
from training.export import export
from training.model.masters import Masters
from training.state import load
from training.tokenizer import shipped_config, shipped_files

TARGET = Path(__file__).parents[1] / "src" / "flash41" / "checkpoint" / "data" / "default"
NUM_SHARDS = 3
CARD_FILE = "card.json"


def ship(state: Path, directory: Path, card: Path | None = None) -> dict[str, int]:
    """Writes the checkpoint and returns the bytes of its files.

    CheckpointError for a state or card that is none, and for a folder that holds something else than a checkpoint.
    """
    kept = directory / CARD_FILE
    named = card or (kept if kept.is_file() else None)
    beside = shipped_files() if named is None else {**shipped_files(), CARD_FILE: _card(named)}
    masters = Masters(shipped_config(), seed=0)
    load(state, masters.parameters)
    export(directory, masters, beside, NUM_SHARDS)
    return {path.name: path.stat().st_size for path in sorted(directory.iterdir())}


def _card(path: Path) -> bytes:
    """Bytes of a card, which are JSON with an object `canary`."""
    try:
        data = path.read_bytes()
        has_promises = isinstance(parse_object(data).get("canary"), dict)
    except (OSError, ValueError) as error:
        raise CheckpointError(complaint(f"card {path}", str(error), "a file with strict JSON")) from error
    if not has_promises:
        raise CheckpointError(complaint(f"card {path}", "no promises", "an object with an object 'canary'"))
    return data


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m training.ship", description="Puts the weights of a run where the package keeps its default."
    )
    parser.add_argument("state", type=Path, help="state file of a run")
    parser.add_argument("--card", type=Path, metavar="FILE", help="card.json to lie beside it; without it the old one")
    parser.add_argument("--to", type=Path, metavar="DIR", default=TARGET, help="folder to write (that of the package)")
    wish = parser.parse_args()
    try:
        sizes = ship(wish.state, wish.to, wish.card)
    except Flash41Error as error:
        sys.exit(f"error: {error}")
    told = "with its card" if CARD_FILE in sizes else "without a card, which the package needs"
    count = len(schema(shipped_config()))
    sys.stdout.write(f"{wish.to}: {count} tensors, {sum(sizes.values()):,} bytes, {told}\n")


if __name__ == "__main__":
    main()
