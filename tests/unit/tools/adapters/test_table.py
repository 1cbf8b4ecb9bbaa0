import pytest

from flash41.config.huggingface import read_config
from flash41.tools.adapters.all import ADAPTERS
from flash41.tools.adapters.table import hook_table
from flash41.tools.points import point_names
from helpers.golden_judge import CHECKPOINT

CONFIG = read_config(CHECKPOINT)


@pytest.mark.parametrize("engine", ADAPTERS)
def test_a_table_has_a_record_for_each_point_shown_and_no_placeholder_left(engine: str) -> None:
    table = hook_table(ADAPTERS[engine], point_names(CONFIG, draft=True, images=True), CONFIG.num_layers)
    assert [record["point"] for record in table] == sorted(record["point"] for record in table)  # type: ignore[type-var]
    assert len({record["name"] for record in table}) == len(table)
    assert not any("{" in str(value) for record in table for value in record.values())
    assert {record["side"] for record in table} <= {"input", "output", "tensor", "edit"}
    assert {record["root"] for record in table} <= {"model", "draft"}


def test_the_last_layer_is_named_by_its_number() -> None:
    (record,) = hook_table(ADAPTERS["vllm"], ["final.pre"], 40)
    assert record == {
        "point": "final.pre",
        "name": "language_model.model.layers.last.output.4",
        "place": "language_model.model.layers.39 output 4",
        "root": "model",
        "side": "output",
        "target": "language_model.model.layers.39",
        "key": 4,
        "call": 0,
        "each": None,
        "change": "same",
        "order_of": None,
    }


def test_a_list_names_the_array_whose_order_it_has() -> None:
    ids, weights = hook_table(ADAPTERS["transformers"], ["L7.router.ids", "L7.router.weights"], 8)
    assert ids["order_of"] is None
    assert weights["order_of"] == ids["name"] == "model.layers.7.ffn.gate.output.1"


def test_a_block_and_a_stage_have_their_numbers() -> None:
    block, stage = hook_table(ADAPTERS["sglang"], ["mtp2.attn.in", "vision.block5"], 4)[::-1]
    assert block["target"] == "vision.blocks.5"
    assert (stage["root"], stage["target"]) == ("draft", "stages.2.self_attn")
