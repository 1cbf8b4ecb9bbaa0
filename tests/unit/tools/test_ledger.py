from typing import Any

import pytest

from flash41.checkpoint.schema import schema
from flash41.checkpoint.stored import Scope, StoredDtype, Subsystem
from flash41.tools.ledger import Amount, Ledger, encoder_layers, ledger
from helpers.checkpoints import published
from helpers.config_documents import release_config, tiny_config

PUBLISHED: dict[str, Any] = published()


@pytest.fixture(scope="module")
def release() -> Ledger:
    return ledger(release_config())


def amount(row: dict[str, Any]) -> Amount:
    return Amount(num_tensors=row["tensors"], num_parameters=row["params"], num_bytes=row["bytes"])


def category(scope: Scope, subsystem: Subsystem) -> str:
    if scope is Scope.VISION:
        return "vision"
    return f"dspark_{subsystem.value}" if scope is Scope.DRAFT else subsystem.value


def test_totals(release: Ledger) -> None:
    totals = PUBLISHED["totals"]
    assert release.total == amount({**totals, "bytes": totals["payload_bytes"]})
    assert release.num_elements == totals["elements_incl_scales"]


def test_every_category_to_the_byte(release: Ledger) -> None:
    found: dict[str, Amount] = {}
    for row, one in release.amounts.items():
        found[category(*row)] = found.get(category(*row), Amount()) + one
    assert found == {row["category"]: amount(row) for row in PUBLISHED["by_category"]}


def test_bytes_by_dtype(release: Ledger) -> None:
    assert {dtype.value: count for dtype, count in release.bytes_by_dtype.items()} == PUBLISHED["by_dtype_bytes"]


def test_owners(release: Ledger) -> None:
    assert {name: one.num_bytes for name, one in release.owners.items()} == PUBLISHED["split_bytes"]
    assert {name: one.num_parameters for name, one in release.owners.items()} == PUBLISHED["split_params"]


def test_the_published_share_table_and_what_it_leaves_out(release: Ledger) -> None:
    names = {
        "DSpark routed experts": "DSpark routed experts",
        "DSpark everything else": "DSpark rest",
        "backbone attention (incl. hc_attn, attn_norm)": "backbone attention",
        "embed + lm_head": "embed and head",
        "vision + aligner": "vision and aligner",
    }
    rows = {names.get(row["row"], row["row"]): row for row in PUBLISHED["share_table"]}
    assert release.shares.keys() - {"outside"} == rows.keys()
    for name, row in rows.items():
        assert (release.shares[name], release.percent(name)) == (row["params"], row["percent"]), name
    assert release.shares["outside"] == PUBLISHED["rows_outside_share_table"]["sum"]
    assert sum(release.shares.values()) == release.total.num_parameters


def test_the_loading_manifest(release: Ledger) -> None:
    names = {
        "embedding(+3 image vectors)": "embedding and image vectors",
        "kv-index": "compressor and indexer",
        "lm-head": "head",
        "mtp-expert": "mtp experts",
        "mtp-router": "mtp router",
        "mtp-shared": "mtp shared",
        "norm": "norms",
        "routed-expert": "routed experts",
        "shared-expert": "shared experts",
        "unknown == all hc_*": "hc",
        "vision without the three image vectors": "vision",
    }
    wanted = {names.get(row["subsystem"], row["subsystem"]): row for row in PUBLISHED["manifest"]}
    found = {
        name: {"subsystem": wanted[name]["subsystem"], "tensors": one.num_tensors, "bytes": one.num_bytes}
        for name, one in release.manifest.items()
    }
    assert found == wanted


def test_activation(release: Ledger) -> None:
    wanted, found = PUBLISHED["activation"], release.activation
    assert found.total == wanted["total"] == 16_792_502_384
    assert release.activation_without_embedding == wanted["without_embedding_matrix"]
    assert release.encoder_activation.total == wanted["encoder_layers_0_19"]
    parts = (found.routed, found.attention, found.compressor, found.indexer, found.shared, found.embed_head_norm)
    assert parts == tuple(
        wanted[key] for key in ("routed", "attention", "compressor", "indexer", "shared", "embed_head_norm")
    )
    assert (found.engram_projection, found.gate_and_mhc) == (wanted["engram_proj"], wanted["gate_mhc"])


def test_units(release: Ledger) -> None:
    wanted, units = PUBLISHED["units"], release.units
    assert units.expert == wanted["expert"]
    assert units.expert_bytes == wanted["expert_bytes"]
    assert units.attention_per_layer == wanted["attention_core_per_layer"]
    assert units.attention_with_mhc_per_layer == wanted["attention_with_hc_and_norm_per_layer"]
    assert units.mhc_set == wanted["hc_set"]
    full_2, full_1, reindex = (wanted[key] for key in ("full_extra_ratio_2", "full_extra_ratio_1", "reindex_extra"))
    owners = {2: full_2, 8: full_2, 14: full_2, 20: full_1}
    assert units.extra_by_layer == owners | dict.fromkeys((24, 28, 32, 36), reindex)


def test_layer_halves(release: Ledger) -> None:
    assert encoder_layers(release_config()) == 20
    for half, name in ((release.encoder, "layers_0_19"), (release.decoder, "layers_20_39")):
        assert {"tensors": half.num_tensors, "bytes": half.num_bytes} == PUBLISHED["layer_halves"][name]


def test_the_ledger_of_any_config_adds_up() -> None:
    small = ledger(tiny_config())
    specs = schema(tiny_config()).values()
    assert small.total.num_tensors == len(specs) == 1568
    assert small.total.num_bytes == 6_717_760
    assert small.num_elements == sum(spec.layout.num_elements for spec in specs)
    for rows in (small.amounts, small.owners, small.manifest):
        total = sum(rows.values(), start=Amount())  # type: ignore[attr-defined]
        assert total == small.total
    assert sum(small.bytes_by_dtype.values()) == small.total.num_bytes
    scales = sum(spec.num_bytes for spec in specs if spec.layout.is_scale)
    assert small.bytes_by_dtype[StoredDtype.F8_E8M0] == scales
    assert 0 < small.encoder_activation.total < small.activation.total < small.total.num_parameters
