"""Weights are shown as the schema has them."""

from flash41.checkpoint.schema import schema
from flash41.tools.anatomy import Anatomy
from flash41.tools.anatomy_page.tensors import STORAGE_WORDS, Tensors
from flash41.tools.ledger_rows import Storage


def test_a_weight_has_its_logical_shape_and_its_storage(tiny: Anatomy) -> None:
    tensors = Tensors(schema(tiny.config))
    assert "layers.2.attn.wq_a.weight" in tensors
    assert tensors.shape("layers.2.ffn.experts.0.w1.weight") == (64, 128)
    names = ("ffn.experts.0.w1.weight", "attn.compressor.wgate.weight", "attn.nothing", "hc_attn_fn")
    assert tensors.weights("layers.2.", names) == [
        {"name": "ffn.experts.0.w1", "shape": [64, 128], "storage": "FP4 1x32"},
        {"name": "attn.compressor.wgate", "shape": [64, 128], "storage": "BF16"},
        {"name": "hc_attn_fn", "shape": [24, 512], "storage": "FP32"},
    ]


def test_every_storage_has_a_word() -> None:
    assert set(STORAGE_WORDS) == set(Storage)
