"""Every number that the model's published anatomy states and the specification confirms, from `inspect --json`.

Numbers are as printed there: a rounded one is compared as it is rounded.  Where the specification corrects the document
(10.71 M for 10.72 M) the corrected one stands here.  spec: README.md section 9, checkpoint.md section 5.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from helpers.command_line import invoke
from helpers.config_documents import DATA

Document = dict[str, Any]
GIB = 2**30


@pytest.fixture(scope="module")
def release() -> Document:
    document: Document = json.loads(invoke("inspect", DATA / "release.json", "--json").output)
    return document


def billions(count: int) -> float:
    return round(count / 1e9, 2)


def millions(count: int) -> float:
    return round(count / 1e6, 2)


def gib(count: int) -> float:
    return round(count / GIB, 2)


def pool(document: Document, main: str, index: str, drafts: int = 0) -> Document:
    (found,) = [
        one
        for one in document["cache"]["pools"]
        if (one["main"], one["index"], one["draft_tokens"]) == (main, index, drafts)
    ]
    return dict(found)


def shape(document: Document, pattern: str, dtype: str) -> list[list[int]]:
    return [
        row["shape"] for row in document["tensors"]["by_pattern"] if (row["pattern"], row["dtype"]) == (pattern, dtype)
    ]


HEADLINES: dict[str, tuple[Callable[[Document], object], object]] = {
    "logical parameters": (lambda d: billions(d["parameters"]["total"]), 763.21),
    "active per token": (lambda d: billions(d["active_parameters"]["total"]), 16.79),
    "layers": (lambda d: (d["config"]["num_layers"], d["config"]["dspark"]["num_stages"]), (40, 3)),
    "hidden size": (lambda d: d["config"]["hidden_size"], 5120),
    "experts": (lambda d: (d["config"]["moe"]["num_experts"], d["config"]["moe"]["num_experts_per_token"]), (384, 6)),
    "selected rows": (lambda d: d["config"]["indexer"]["topk"], 512),
    "layers that neither compress nor score": (lambda d: d["modes"]["REUSE"]["num_layers"], 30),
    "KiB per token, BF16 and FP8": (lambda d: round(pool(d, "bf16", "fp8")["bytes_per_token"] / 1024, 2), 2.82),
    "positions": (lambda d: d["config"]["max_positions"], 2**20),
    "total size of the index": (lambda d: d["bytes"]["total"], 510_286_023_000),
    "on disk": (lambda d: gib(d["bytes"]["total"]), 475.24),
    "backbone": (lambda d: gib(d["bytes"]["by_owner"]["backbone"]), 278.12),
    "Engram tables": (lambda d: gib(d["bytes"]["by_owner"]["engram_tables"]), 188.83),
    "vision": (lambda d: gib(d["bytes"]["by_owner"]["vision"]), 0.9),
    "DSpark": (lambda d: gib(d["bytes"]["by_owner"]["dspark"]), 7.39),
    "routed share of disk": (
        lambda d: round(100 * d["bytes"]["by_category"]["routed"] / d["bytes"]["total"]),
        57,
    ),
    "one table as FP32, GB": (lambda d: round(d["engram_reads"]["table_fp32_bytes"][0] / 1e9), 393),
    "elements read of the tables": (lambda d: d["engram_reads"]["elements_per_token"], 24 * 256 * 2),
    "width of what is gathered": (lambda d: d["engram_reads"]["width"], 6144),
    "rows the tables differ by": (
        lambda d: d["config"]["engram"]["table_rows"][1] - d["config"]["engram"]["table_rows"][0],
        10514,
    ),
    "compressed vocabulary": (lambda d: d["config"]["engram"]["compressed_vocab_size"], 99092),
    "rows of a query": (lambda d: d["rows_per_query"], {"window": 128, "selected": 512, "total": 640}),
    "taps": (lambda d: list(d["config"]["dspark"]["target_layer_ids"]), [37, 38, 39]),
}

MODES = {
    "WINDOW": (2, False, False, 0, [0]),
    "FULL": (4, True, True, None, [10.72, 8.09]),
    "REINDEX": (4, False, True, 2048 * 8, [5.41]),
    "REUSE": (30, False, False, 0, [0]),
}

SHARES = {
    "routed experts": (543.58, 71.22),
    "Engram tables": (196.61, 25.76),
    "DSpark routed experts": (13.59, 1.78),
    "backbone attention": (5.08, 0.67),
    "shared experts": (1.42, 0.19),
    "embed and head": (1.32, 0.17),
    "DSpark rest": (0.64, 0.08),
    "vision and aligner": (0.49, 0.06),
    "Engram projections": (0.31, 0.04),
}

ACTIVE = {
    "routed": 8.49,
    "attention": 5.08,
    "shared": 1.42,
    "embed_head_norm": 1.32,
    "engram_projection": 0.31,
}

POOLS = {
    ("bf16", "fp8"): (739_840, 2890, 1024, 1024, 132, 5_276_672),
    ("bf16", "fp4"): (698_880, 2730, 1024, 1024, 68, 5_276_672),
    ("fp4", "fp8"): (268_800, 1050, 288, 528, 132, 2_736_384),
    ("fp4", "fp4"): (227_840, 890, 288, 528, 68, 2_736_384),
}

TENSORS = [
    ("embed.weight", [129280, 5120], "BF16"),
    ("head.weight", [129280, 5120], "BF16"),
    ("layers.{L}.attn.wq_a.weight", [1280, 5120], "F8_E4M3"),
    ("layers.{L}.attn.wkv.weight", [512, 5120], "F8_E4M3"),
    ("layers.{L}.attn.wq_b.weight", [32768, 1280], "F8_E4M3"),
    ("layers.{L}.attn.wo_a.weight", [8192, 4096], "F8_E4M3"),
    ("layers.{L}.attn.wo_b.weight", [5120, 8192], "F8_E4M3"),
    ("layers.{L}.attn.attn_sink", [64], "F32"),
    ("layers.{L}.hc_attn_fn", [24, 20480], "F32"),
    ("layers.{L}.hc_ffn_fn", [24, 20480], "F32"),
    ("layers.{L}.attn.compressor.wkv.weight", [512, 5120], "BF16"),
    ("layers.{L}.attn.compressor.wgate.weight", [512, 5120], "BF16"),
    ("layers.{L}.attn.indexer.wq_b.weight", [4096, 1280], "F8_E4M3"),
    ("layers.{L}.attn.indexer.wk.weight", [128, 512], "BF16"),
    ("layers.{L}.attn.indexer.weights_proj.weight", [32, 5120], "BF16"),
    ("layers.{L}.ffn.gate.weight", [384, 5120], "BF16"),
    ("layers.{L}.ffn.gate.bias", [384], "F32"),
    ("layers.{L}.ffn.gate.bias_vl", [384], "F32"),
    ("layers.{L}.ffn.experts.{e}.w1.weight", [2304, 2560], "I8"),
    ("layers.{L}.ffn.experts.{e}.w1.scale", [2304, 160], "F8_E8M0"),
    ("layers.{L}.ffn.experts.{e}.w2.weight", [5120, 1152], "I8"),
    ("layers.{L}.ffn.experts.{e}.w2.scale", [5120, 72], "F8_E8M0"),
    ("layers.{L}.ffn.shared_experts.w1.weight", [2304, 5120], "F8_E4M3"),
    ("layers.{L}.engram.wkv.weight", [25600, 6144], "F8_E4M3"),
    ("mtp.{i}.main_proj.weight", [5120, 15360], "F8_E4M3"),
    ("mtp.{i}.markov_head.embed.weight", [129280, 256], "BF16"),
    ("mtp.{i}.markov_head.head.weight", [129280, 256], "BF16"),
    ("mtp.{i}.confidence_head.proj.weight", [1, 5376], "BF16"),
]


@pytest.mark.parametrize("name", HEADLINES)
def test_a_headline_is_as_published(name: str, release: Document) -> None:
    value, expected = HEADLINES[name]
    assert value(release) == expected


@pytest.mark.parametrize("mode", MODES)
def test_a_row_of_the_modes_is_as_published(mode: str, release: Document) -> None:
    row = release["modes"][mode]
    extra = [millions(count) for count in row["extra_parameters"]]
    found = (row["num_layers"], row["writes_main_plane"], row["scores"], row["most_scored_rows"], extra)
    assert found == MODES[mode]
    assert row["writes_index_plane"] == row["writes_main_plane"]


@pytest.mark.parametrize("part", SHARES)
def test_a_share_is_as_published(part: str, release: Document) -> None:
    share = release["shares"][part]
    assert (billions(share["parameters"]), share["percent"]) == SHARES[part]


def test_the_shares_and_what_they_leave_out_are_everything(release: Document) -> None:
    assert set(release["shares"]) == {*SHARES, "outside"}
    assert sum(share["parameters"] for share in release["shares"].values()) == release["parameters"]["total"]


def test_active_parameters_are_made_up_as_published(release: Document) -> None:
    active = release["active_parameters"]
    assert {name: billions(active[name]) for name in ACTIVE} == ACTIVE
    assert (round(active["compressor"] / 1e6, 1), round(active["indexer"] / 1e6, 1)) == (18.4, 43.5)
    assert round(active["gate_and_mhc"] / 1e9, 3) == 0.099
    assert (millions(release["units"]["expert"]), millions(release["units"]["attention_with_mhc_per_layer"])) == (
        35.39,
        127.11,
    )


@pytest.mark.parametrize("formats", POOLS, ids=str)
def test_a_pool_costs_what_was_published(formats: tuple[str, str], release: Document) -> None:
    found = pool(release, *formats)
    keys = ("page_bytes", "bytes_per_token", "main_row_bytes", "window_row_bytes", "index_row_bytes", "state_bytes")
    assert tuple(found[key] for key in keys) == POOLS[formats]


def test_a_page_and_a_state_are_made_up_as_published(release: Document) -> None:
    plain, drafting = pool(release, "bf16", "fp8"), pool(release, "bf16", "fp8", 5)
    assert [owner["layer_id"] for owner in plain["owners"]] == [2, 8, 14, 20]
    assert [owner["rows_per_page"] for owner in plain["owners"]] == [128, 128, 128, 256]
    assert [owner["main_bytes"] for owner in plain["owners"]] == [131_072, 131_072, 131_072, 262_144]
    assert (plain["page_main_bytes"], plain["page_index_bytes"]) == (655_360, 84_480)
    assert plain["state_fields"] == {"window": 5_242_880, "compress_kv": 16_384, "compress_score": 16_384, "cursor": 32}
    assert round(plain["state_bytes"] / 2**20, 2) == 5.03
    assert (plain["window_ring"], plain["compressor_ring"]) == (128, 2)
    assert (drafting["window_ring"], drafting["compressor_ring"]) == (133, 7)
    assert round(2**20 * plain["bytes_per_token"] / GIB, 3) == 2.822


@pytest.mark.parametrize(("pattern", "expected", "dtype"), TENSORS)
def test_a_row_of_the_tensors_is_as_published(pattern: str, expected: list[int], dtype: str, release: Document) -> None:
    assert shape(release, pattern, dtype) == [expected]


def test_the_tables_are_as_published(release: Document) -> None:
    assert shape(release, "layers.{L}.engram.embed.weight", "F8_E4M3") == [[384006168, 256], [384016682, 256]]


def test_the_published_absences_hold(release: Document) -> None:
    sources = {"FULL": (2, 8, 14, 20), "REINDEX": (24, 28, 32, 36)}
    for mode, layer_ids in sources.items():
        assert tuple(release["modes"][mode]["layer_ids"]) == layer_ids
    counts = {row["pattern"]: row["num_tensors"] for row in release["tensors"]["by_pattern"]}
    assert counts["layers.{L}.attn.indexer.wk.weight"] == 4
    assert counts["layers.{L}.attn.indexer.wq_b.weight"] == 8
    assert counts["layers.{L}.attn.compressor.wgate.weight"] == 3
    assert not [pattern for pattern in counts if "ape" in pattern.split(".")]
