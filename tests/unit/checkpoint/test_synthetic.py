import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flash41.checkpoint.reader import DTYPES
from flash41.checkpoint.schema import schema
from flash41.checkpoint.stored import StoredDtype, Subsystem, TensorSpec
from flash41.checkpoint.synthetic import HEAD_GAIN, STREAM_AFFINITY, synthetic_weights
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import config_from_dict
from flash41.config.primes import table_rows
from flash41.errors import CheckpointError
from flash41.numerics.formats import decode_e4m3, decode_e8m0, decode_packed_e2m1
from helpers.config_documents import patched, tiny_config, tiny_text

CONFIG = tiny_config()
SPECS = schema(CONFIG)


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """The golden checkpoint's layers with other widths, counts and tables."""
    wide = st.integers(1, 3).map(lambda units: 32 * units)
    groups, heads, columns = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    rows, order = draw(st.integers(10, 60)), draw(st.integers(2, 4))
    text = {
        "hidden_size": draw(wide),
        "o_groups": groups,
        "num_attention_heads": groups * heads,
        "head_dim": draw(wide),
        "q_lora_rank": draw(wide),
        "o_lora_rank": draw(wide),
        "index_n_heads": draw(st.integers(1, 3)),
        "moe_intermediate_size": draw(wide),
        "n_routed_experts": draw(st.integers(2, 5)),
        "num_experts_per_tok": draw(st.integers(1, 2)),
        "dspark_n_routed_experts": 2,
        "dspark_num_experts_per_tok": 1,
        "hc_mult": draw(st.integers(1, 4)),
        "engram_max_ngram_size": order,
        "engram_n_heads": columns,
        "engram_head_dim": draw(wide),
        "engram_vocab_size": rows,
        "engram_num_embeddings": list(table_rows(rows, columns, order, 2)),
    }
    patch = {f"text_config.{key}": value for key, value in text.items()}
    return config_from_dict(patched(patch, json.loads(tiny_text())))


@given(config=configs(), seed=st.integers(0, 5))
@settings(max_examples=5, deadline=None)
def test_every_tensor_of_any_config_has_the_shape_and_format_of_the_schema(config: ModelConfig, seed: int) -> None:
    stored = synthetic_weights(config, seed)
    for name, spec in schema(config).items():
        tensor = stored(name)
        assert (tuple(tensor.shape), tensor.dtype) == (spec.shape, DTYPES[spec.dtype]), name
        if spec.dtype is StoredDtype.F8_E8M0:
            assert int(tensor.max()) < 255, name
        elif spec.dtype is StoredDtype.F8_E4M3:
            assert bool(decode_e4m3(tensor).isfinite().all()), name
        elif tensor.is_floating_point():
            assert bool(tensor.isfinite().all()), name


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_the_same_seed_gives_the_same_bytes_in_any_order_of_asking() -> None:
    names = [name for name in SPECS if name.startswith(("layers.4.", "mtp.2.", "vision.", "embed"))]
    forwards, backwards = synthetic_weights(CONFIG, 7), synthetic_weights(CONFIG, 7)
    found = {name: raw(backwards(name)) for name in reversed(names)}
    assert [name for name in names if raw(forwards(name)) != found[name]] == []


def test_another_seed_gives_other_bytes_to_every_tensor_but_scales() -> None:
    names = [name for name in SPECS if name.startswith(("layers.4.", "mtp.2.", "vision.", "embed"))]
    first, second = synthetic_weights(CONFIG, 7), synthetic_weights(CONFIG, 8)
    equal = [name for name in names if raw(first(name)) == raw(second(name))]
    assert [name for name in equal if SPECS[name].dtype is not StoredDtype.F8_E8M0] == []


def test_no_two_tensors_have_the_same_values() -> None:
    stored = synthetic_weights(CONFIG, 0)
    # Tensors of fewer elements may meet by chance in BF16.
    names = [name for name, spec in SPECS.items() if spec.layout.num_elements > 16 and not spec.layout.is_scale]
    assert len({raw(stored(name)) for name in names}) == len(names) > 500


def test_a_tensor_does_not_depend_on_the_config_around_it() -> None:
    document = patched({"text_config.n_routed_experts": 20}, json.loads(tiny_text()))
    larger = synthetic_weights(config_from_dict(document), 7)
    assert raw(larger("layers.4.attn.wq_a.weight")) == raw(synthetic_weights(CONFIG, 7)("layers.4.attn.wq_a.weight"))


def test_a_name_outside_the_schema_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"tensor name: got 'layers.99.x', expected a name of the schema"):
        synthetic_weights(CONFIG, 0)("layers.99.x")


def values(name: str, stored: Callable[[str], Tensor]) -> Tensor:
    """Decoded values of a tensor, FP64."""
    spec, tensor = SPECS[name], stored(name)
    if spec.dtype not in (StoredDtype.I8, StoredDtype.F8_E4M3):
        return tensor.double()
    decode: Any = decode_packed_e2m1 if spec.dtype is StoredDtype.I8 else decode_e4m3
    decoded: Tensor = decode(tensor).double()
    scales = decode_e8m0(stored(name.removesuffix("weight") + "scale")).double()
    per_row = len(scales) == len(decoded)
    rows = scales if per_row else scales.repeat_interleave(32, 0)[: len(decoded)]
    return decoded * rows.repeat_interleave(32, 1)[:, : decoded.shape[1]]


def of(*subsystems: Subsystem) -> Iterator[TensorSpec]:
    return (spec for spec in SPECS.values() if spec.subsystem in subsystems and not spec.layout.is_scale)


def deviation(specs: Iterator[TensorSpec], stored: Callable[[str], Tensor], gain: float) -> float:
    """Deviation of all values times `gain`."""
    parts = [values(spec.name, stored).flatten() for spec in specs if len(spec.shape) == 2]
    return float(torch.cat(parts).std()) * gain


class TestScales:
    """Activations keep a size of order one: a map of K channels divides by sqrt(K)."""

    stored = staticmethod(synthetic_weights(CONFIG, 3))

    @pytest.mark.parametrize(
        ("suffix", "width"),
        [
            ("attn.wq_a.weight", CONFIG.hidden_size),
            ("ffn.experts.3.w1.weight", CONFIG.hidden_size),
            ("ffn.experts.3.w2.weight", CONFIG.moe.intermediate_size),
            ("ffn.gate.weight", CONFIG.hidden_size),
        ],
    )
    def test_products_of_normed_inputs_have_deviation_1(self, suffix: str, width: int) -> None:
        parts = [values(f"layers.{layer_id}.{suffix}", self.stored).flatten() for layer_id in range(CONFIG.num_layers)]
        found = float(torch.cat(parts).std()) * width**0.5
        assert 0.95 < found < 1.05  # thousands of values; rounding to E2M1 adds about 1 %

    @pytest.mark.parametrize(
        ("subsystems", "gain", "expected"),
        [
            ((Subsystem.HEAD,), CONFIG.hidden_size**0.5, HEAD_GAIN),
            ((Subsystem.EMBED,), 1.0, 1.0),
            ((Subsystem.ENGRAM_TABLE,), 1.0, 1.0),
        ],
    )
    def test_tables_and_head_have_theirs(self, subsystems: tuple[Subsystem, ...], gain: float, expected: float) -> None:
        assert abs(deviation(of(*subsystems), self.stored, gain) / expected - 1) < 0.05

    def test_norms_lie_around_1(self) -> None:
        norms = [spec.name for spec in of(Subsystem.ATTENTION_NORM, Subsystem.MOE_NORM, Subsystem.FINAL_NORM)]
        assert len(norms) > 20
        for name in norms:
            found = values(name, self.stored)
            assert 0.6 < float(found.min()) < float(found.max()) < 1.4, name

    def test_biases_are_small(self) -> None:
        biases = [name for name in SPECS if name.endswith((".bias", ".bias_vl"))]
        assert len(biases) > 20
        assert max(float(values(name, self.stored).abs().max()) for name in biases) < 0.2

    def test_a_stream_mostly_keeps_itself(self) -> None:
        streams = CONFIG.mhc.streams
        base = torch.stack(
            [
                values(f"layers.{layer_id}.hc_{part}_base", self.stored)
                for layer_id in range(CONFIG.num_layers)
                for part in ("attn", "ffn")
            ]
        )
        mixing = base[:, 2 * streams :].view(-1, streams, streams).mean(0)
        kept, passed = mixing.diagonal().mean(), mixing[~torch.eye(streams, dtype=torch.bool)].mean()
        assert abs(float(kept - passed) - STREAM_AFFINITY) < 0.3
