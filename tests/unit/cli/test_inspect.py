import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flash41.errors import ConfigError
from helpers.checkpoints import TINY, published
from helpers.command_line import invoke
from helpers.config_documents import DATA, patched, topology_vectors

RELEASE = DATA / "release.json"


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    result = invoke("inspect", RELEASE, "--json")
    assert result.exit_code == 0
    document: dict[str, Any] = json.loads(result.output)
    return document


@pytest.fixture(scope="module")
def text() -> str:
    result = invoke("inspect", RELEASE)
    assert result.exit_code == 0
    return result.output


def test_the_release_is_named(release: dict[str, Any], text: str) -> None:
    assert release["name"] == "DeepSeek-V4.1-Flash"
    assert text.startswith("DeepseekV41ForCausalLM (model_type deepseek_v41): DeepSeek-V4.1-Flash\n")


def test_another_model_is_not_named_after_the_release(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(patched({"text_config.max_position_embeddings": 4096})))
    assert json.loads(invoke("inspect", path, "--json").output)["name"].startswith("not a released model")


def test_the_keys_are_stable(release: dict[str, Any]) -> None:
    assert list(release) == sorted(release)
    assert set(release) == {
        "name",
        "architecture",
        "model_type",
        "token_ids",
        "config",
        "layers",
        "groups",
        "modes",
        "rows_per_query",
        "engram_reads",
        "units",
        "shares",
        "parameters",
        "bytes",
        "tensors",
        "active_parameters",
        "quantization",
        "cache",
    }


def test_every_layer_and_group_is_as_the_vectors_say(release: dict[str, Any]) -> None:
    vectors = topology_vectors()
    assert len(release["layers"]) == len(vectors["layers"])
    for layer, expected in zip(release["layers"], vectors["layers"], strict=True):
        assert layer == {
            "layer_id": expected["layer"],
            "ratio": expected["ratio"],
            "mode": expected["mode"],
            "kv_owner": expected["kv_owner"],
            "topk_owner": expected["topk_owner"],
            "produces_candidates": expected["produces_candidates"],
            "bounded_by_candidates": expected["bounded_by_candidates"],
            "has_engram": expected["engram"],
            "is_tap": expected["dspark_tap"],
            "is_draft": expected.get("draft", False),
            "group_start": expected["group_start"],
        }
    assert [{**group, "is_draft": None} for group in release["groups"]] == [
        {**group, "is_draft": None} for group in vectors["groups"]
    ]


def test_sizes_are_the_published_ones(release: dict[str, Any]) -> None:
    expected = published()
    assert release["parameters"]["total"] == 763_205_315_794
    assert release["bytes"]["total"] == 510_286_023_000
    assert release["tensors"]["total"] == 96_085
    for key, column in (("parameters", "params"), ("bytes", "bytes"), ("tensors", "tensors")):
        assert release[key]["by_category"] == {row["category"]: row[column] for row in expected["by_category"]}
    assert release["bytes"]["by_owner"] == expected["split_bytes"]
    assert release["bytes"]["by_dtype"] == expected["by_dtype_bytes"]


def test_active_parameters_are_the_published_ones(release: dict[str, Any]) -> None:
    active = release["active_parameters"]
    assert (active["total"], active["encoder"]) == (16_792_502_384, 7_892_875_448)
    extra = {"total", "encoder", "decoder", "without_embedding"}
    assert active["encoder"] + active["decoder"] + active["embed_head_norm"] == active["total"]
    assert sum(count for name, count in active.items() if name not in extra) == active["total"]


def test_storage_classes_cover_everything_once(release: dict[str, Any]) -> None:
    classes = release["quantization"]
    assert sum(one["num_bytes"] for one in classes.values()) == release["bytes"]["total"]
    assert sum(one["num_tensors"] for one in classes.values()) == release["tensors"]["total"]
    assert (classes["fp4_experts"]["element"], classes["fp4_experts"]["group"]) == ("E2M1", [1, 32])
    assert classes["fp8_dense"]["group"] == [32, 32]
    assert classes["fp8_rows"]["num_tensors"] == 4
    assert classes["bf16"]["scale"] is None


def test_the_cost_of_the_cache_is_told_by_pool(release: dict[str, Any], text: str) -> None:
    pools = release["cache"]["pools"]
    assert [pool["bytes_per_token"] for pool in pools if (pool["main"], pool["index"]) == ("bf16", "fp8")] == [2890] * 2
    assert release["cache"]["block_size"] == 256
    assert "  bf16  fp8         5    739,840      2,890      5,971,968    5.38 MiB          2.83 GiB\n" in text


def test_a_cache_that_cannot_be_laid_out_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(patched({"text_config.candidate_block_size": 3})))
    result = invoke("inspect", path)
    assert result.exit_code == 0, result.exception
    fault = "block_size: got 256, expected rows per PAGE in whole tiles of 3; smallest legal block_size 6"
    assert f"  refused: {fault}\n" in result.output
    assert "Cache, pages of 256 tokens\n  refused: " in result.output


def test_token_ids_are_told(release: dict[str, Any]) -> None:
    assert release["token_ids"] == {"bos": 0, "eos": 1, "pad": 2, "image": 129_264, "draft_noise": 128_799}


def test_the_text_shows_exact_numbers_and_human_units(text: str) -> None:
    assert "763,205,315,794  763.21 B  510,286,023,000  475.24 GiB" in text
    assert "16,792,502,384" in text
    assert "E8M0 per 32 x 32" in text
    assert "   24-27      1        20           24  REINDEX + 3 REUSE" in text


def test_the_strip_lines_are_all_as_wide_as_the_layers(text: str) -> None:
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("  layer "))
    mode = next(line for line in lines[first:] if line.startswith("  mode "))
    assert mode.split()[1:] == ["WWFUUUUUFUUUUUFUUUUUFUUUIUUUIUUUIUUUIUUU", "WWW"]
    assert lines[first].split()[1:] == ["0123456789" * 4, "012"]


def test_a_directory_without_weights_is_enough(tmp_path: Path) -> None:
    shutil.copy(TINY / "config.json", tmp_path)
    result = invoke("inspect", tmp_path)
    assert result.exit_code == 0
    assert "  total " in result.output


def test_a_model_without_candidates_or_drafts_is_shown_too(tmp_path: Path) -> None:
    changes = {
        "candidate_source_layer_id": -1,
        "num_nextn_predict_layers": 0,
        "compress_ratios": [0, 0] + [2] * 18 + [1] * 20,
        "dspark_target_layer_ids": [],
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(patched({f"text_config.{key}": value for key, value in changes.items()})))
    result = invoke("inspect", path)
    assert result.exit_code == 0, result.exception
    assert "no candidate source" in result.output
    assert "(draft)" not in result.output


def test_files_are_shown_from_the_index_without_opening_one(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors.index.json"):
        shutil.copy(TINY / name, tmp_path)
    shards = json.loads(invoke("inspect", tmp_path, "--json").output)["tensors"]["by_shard"]
    assert [shards[name]["num_tensors"] for name in sorted(shards)] == [541, 623, 392, 6, 6]
    assert sum(shard["num_bytes"] for shard in shards.values()) == 6_717_760


def test_an_index_that_cannot_be_read_is_said_and_hides_nothing_else(tmp_path: Path) -> None:
    shutil.copy(TINY / "config.json", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    result = invoke("inspect", tmp_path)
    assert result.exit_code == 0
    assert "\nFiles by the index\n  model.safetensors.index.json: a JSON list instead of an object" in result.output
    assert "\nCache, pages of 256 tokens\n" in result.output


def test_tensors_are_listed_on_request(text: str) -> None:
    listed = invoke("inspect", RELEASE, "--tensors").output
    row = ["layers.{L}.ffn.experts.{e}.w1.weight", "[2304,", "2560]", "I8", "EP|0", "15,360", "90,596,966,400"]
    assert row in [line.split()[:7] for line in listed.splitlines()]
    assert row[0] not in text


def test_markdown_has_the_same_numbers_in_tables(release: dict[str, Any]) -> None:
    result = invoke("inspect", RELEASE, "--markdown")
    assert result.exit_code == 0
    assert result.output.startswith("# DeepseekV41ForCausalLM (model\\_type deepseek\\_v41): DeepSeek-V4.1-Flash\n")
    assert "| total | 96,085 | 763,205,315,794 | 763.21 B | 510,286,023,000 | 475.24 GiB |" in result.output
    tables = [block for block in result.output.split("\n\n") if block.startswith("|")]
    assert len(tables) >= 10
    for table in tables:
        widths = {line.replace("\\|", "").count("|") for line in table.splitlines()}
        assert len(widths) == 1, table
    assert f"{release['active_parameters']['total']:,}" in result.output


def test_json_and_markdown_exclude_each_other() -> None:
    result = invoke("inspect", RELEASE, "--json", "--markdown")
    assert result.exit_code == 2
    assert "expected one of them" in result.output


def test_a_broken_config_is_one_error_with_all_faults(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(patched({"text_config.hidden_size": "wide", "text_config.nonsense": 1})))
    result = invoke("inspect", path)
    assert isinstance(result.exception, ConfigError)
    assert "hidden_size" in str(result.exception)
    assert "nonsense" in str(result.exception)
