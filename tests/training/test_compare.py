"""Scores of stored weights beside those of the masters: which weights a forward sees, and which turns are right."""

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from flash41.chat.conversation import ChatCodec
from flash41.chat.tokenizer import Tokenizer
from helpers.small_training import restless, small_config, small_map
from training.batches import collate
from training.compare import compared, main, turns
from training.corpus.render import Example, Renderer
from training.evaluate import held_out
from training.model.build import Sequences, TrainableModel
from training.model.masters import Masters, RoundedWeights
from training.model.straight import fp8_32
from training.tokenizer import FOLDER

FAMILIES = ["copying", "stories", "pictures"]


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    config = small_config()
    renderer = Renderer(ChatCodec(Tokenizer.from_file(FOLDER / "tokenizer.json"), config.tokens.image), config)
    return held_out(renderer, FAMILIES, 3, 16, 40, 96)


def test_unquantised_weights_are_the_masters_themselves() -> None:
    masters = restless()
    stored, bare = RoundedWeights(masters), RoundedWeights(masters, is_rounding=False)
    wanted = masters.value("layers.0.attn.wq_a.weight")
    assert torch.equal(bare.quantized("layers.0.attn.wq_a").dequantize(), wanted)
    assert not torch.equal(stored.quantized("layers.0.attn.wq_a").dequantize(), wanted)
    table = masters.config.engram.layer_ids[0]
    rows = torch.tensor([[1, 2]])
    masters.parameters[f"layers.{table}.engram.embed.weight"].data.normal_()
    assert torch.equal(bare.table_rows(table, rows)[0, 0], masters.value(f"layers.{table}.engram.embed.weight")[1])
    assert not torch.equal(stored.table_rows(table, rows), bare.table_rows(table, rows))


def test_a_turn_is_right_when_all_of_its_tokens_are_the_most_probable(examples: list[Example]) -> None:
    masters = restless()
    copying = [one for one in examples if one.family == "copying"]
    batch = collate(copying, masters.config.tokens.pad, 0.0)
    begun = [now and not before for one in copying for before, now in pairwise((False, *one.marks))]
    assert turns(masters, small_map(), batch, is_rounding=True) == [("copying", False)] * sum(begun), "untrained"
    # The model's own choices, put where the last answer of the first conversation stands, make that turn right.
    answer = len(copying[0].ids) - len(copying[0].answer)
    for place in range(answer, len(copying[0].ids)):
        model = TrainableModel(masters, small_map())
        sequences = Sequences(ids=batch.ids)
        logits = model.forward(sequences, model.view(sequences), torch.tensor([place - 1])).logits
        batch.ids[0, place] = logits.argmax()
    right = [is_right for _, is_right in turns(masters, small_map(), batch, is_rounding=True)]
    assert right == [number == sum(begun[: len(copying[0].ids)]) - 1 for number in range(sum(begun))]


def test_weights_that_are_stored_exactly_compute_the_same_either_way(examples: list[Example]) -> None:
    masters, exact = restless(), restless()
    rounded = RoundedWeights(masters)
    with torch.no_grad():
        for name in masters.specs:
            if name.endswith("embed.weight") and "engram" in name:
                exact.parameters[name].copy_(fp8_32(masters.value(name)))
            elif name in masters.parameters:  # experts, which share a master, are left as they are
                value = rounded._once(name, masters.specs[name])
                exact.parameters[name].copy_(value)
            else:
                exact.value(name).copy_(rounded.quantized(name.removesuffix(".weight")).dequantize())
    batch = collate([one for one in examples if one.family == "stories"], masters.config.tokens.pad, 0.0)
    sequences = Sequences(ids=batch.ids)

    def logits(weights: Masters, is_rounding: bool) -> torch.Tensor:
        model = TrainableModel(weights, small_map(), is_rounding=is_rounding)
        return model.forward(sequences, model.view(sequences), torch.arange(20)).logits

    assert torch.equal(logits(exact, True), logits(exact, False))
    assert torch.equal(logits(masters, True), logits(exact, True))
    assert not torch.equal(logits(masters, True), logits(masters, False))


def test_every_answered_turn_is_asked_of_both(examples: list[Example]) -> None:
    found = compared(restless(), small_map(), examples)
    begun = Counter[str]()
    for one in examples:
        begun[one.family] += sum(now and not before for before, now in pairwise((False, *one.marks)))
    assert found["turns"] == begun
    assert found["stored"].keys() == found["unquantised"].keys() == begun.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--samples", "0"], r"error: --samples: got 0, expected >= 1"),
        (["--longest", "4"], r"error: --longest: got 4, expected room for one conversation"),
    ],
)
def test_a_comparison_of_nothing_is_refused(arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.compare.load", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["compare", "state", *arguments])
    with pytest.raises(SystemExit, match=said):
        main()


def test_a_file_that_is_no_state_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "missing")])
    with pytest.raises(SystemExit, match=r"error: training state .*missing"):
        main()
    assert capsys.readouterr().out == ""
