"""What storing costs: held-out answers with weights as they are stored, and with the masters they were rounded from.

    python -m training.compare DIR/state.safetensors [--samples 60] [--longest 512]

Both are asked the same conversations in one forward each, all turns at once: a turn is right when every token of its
answer is the most probable one behind the right ones before it, which is when a greedy answer is right.  Prints one
line of JSON: scores by family, {"stored": ..., "unquantised": ...}, and the number of turns.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from flash41.chat.conversation import ChatCodec
from flash41.chat.tokenizer import Tokenizer
from flash41.engram.vocabulary import TokenMap
from flash41.errors import Flash41Error, complaint
from training.batches import Batch, collate
from training.corpus.mixture import FAMILIES
from training.corpus.render import Example, Renderer
from training.evaluate import held_out
from training.model.build import TrainableModel
from training.model.masters import Masters
from training.state import load
from training.steps import pictured
from training.tokenizer import FOLDER, shipped_config

SIDE_BY_SIDE = 8
Turns = list[tuple[str, bool]]
"""Of every turn its family, and whether it is right."""


@torch.inference_mode()
def turns(masters: Masters, token_map: TokenMap, batch: Batch, *, is_rounding: bool) -> Turns:
    """The assistant turns of a batch, in order."""
    model = TrainableModel(masters, token_map, is_rounding=is_rounding)
    sequences = pictured(model, masters, batch).whole()
    answers = batch.weights >= 1.0  # the first token of a sequence is none, so turns end with their sequence
    begins = answers.clone()
    begins[:, 1:] &= ~answers[:, :-1]
    predicted = answers.flatten().nonzero().squeeze(1) - 1
    logits = model.forward(sequences, model.view(sequences), predicted).logits
    wrong = logits.argmax(-1) != batch.ids.flatten()[predicted + 1]
    numbers = begins.flatten().cumsum(0)[predicted + 1] - 1
    num_wrong = torch.zeros(int(begins.sum()), dtype=torch.int64).index_add_(0, numbers, wrong.long())
    families = [batch.families[row] for row in begins.nonzero()[:, 0].tolist()]
    return list(zip(families, (num_wrong == 0).tolist(), strict=True))


def compared(masters: Masters, token_map: TokenMap, examples: Sequence[Example]) -> dict[str, dict[str, float]]:
    """Scores by family under `stored` and `unquantised`, and under `turns` how many were asked."""
    found = {"stored": Counter[str](), "unquantised": Counter[str]()}
    asked = Counter[str]()
    for batch in _batches(examples, masters.config.tokens.pad):
        for name, right in found.items():
            for family, is_right in turns(masters, token_map, batch, is_rounding=name == "stored"):
                right[family] += is_right
                asked[family] += name == "stored"
    scores = {name: {family: right[family] / asked[family] for family in asked} for name, right in found.items()}
    return {**scores, "turns": dict(asked)}


def _batches(examples: Sequence[Example], pad: int) -> Iterator[Batch]:
    ordered = sorted(examples, key=lambda one: len(one.ids))
    for first in range(0, len(ordered), SIDE_BY_SIDE):
        yield collate(ordered[first : first + SIDE_BY_SIDE], pad, 0.0)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m training.compare", description="Scores of stored weights beside those of the masters."
    )
    parser.add_argument("state", type=Path, help="state file of a run")
    parser.add_argument("--samples", type=int, default=60, metavar="N", help="conversations of each family (60)")
    parser.add_argument(
        "--longest", type=int, default=512, metavar="N", help="tokens of the longest conversation (512)"
    )
    wish = parser.parse_args()
    if wish.samples < 1:
        sys.exit(f"error: {complaint('--samples', wish.samples, '>= 1')}")
    config = shipped_config()
    masters = Masters(config, seed=0)
    try:
        load(wish.state, masters.parameters)
    except Flash41Error as error:
        sys.exit(f"error: {error}")
    renderer = Renderer(ChatCodec(Tokenizer.from_file(FOLDER / "tokenizer.json"), config.tokens.image), config)
    examples = held_out(renderer, list(FAMILIES), wish.samples, 16, int(wish.longest * 0.8), wish.longest)
    if not examples:
        sys.exit(f"error: {complaint('--longest', wish.longest, 'room for one conversation', 'such as 96')}")
    token_map = TokenMap.from_tokenizer(FOLDER / "tokenizer.json", config)
    sys.stdout.write(json.dumps(compared(masters, token_map, examples)) + "\n")


if __name__ == "__main__":
    main()
