"""Fifty ways to damage a checkpoint, each seeded, each found and named, and none seen in a good one.

Every case edits a copy and says which words the report must contain; those that lie in weights are found by the deep
examination and by nothing less.  spec: config.md section 4.9, checkpoint.md sections 7 and 8.
"""

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flash41.checkpoint.directory import INDEX_FILE
from flash41.tools.doctor import DeepWish, Report, examine
from helpers.checkpoints import TINY, edit_header, edit_json, read_raw, shard_bytes

Header = dict[str, Any]


class Damaged:
    """A copy whose files are links until one is edited."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        directory.mkdir()
        for path in TINY.iterdir():
            os.symlink(path, directory / path.name)

    def own(self, name: str) -> Path:
        """The file, now a copy of its own."""
        path = self.directory / name
        if path.is_symlink():
            path.unlink()
            shutil.copyfile(TINY / name, path)
        return path

    def shard(self) -> str:
        return self.random.choice(sorted(path.name for path in TINY.glob("*.safetensors")))

    def tensor(self, dtype: str, ends: str = "") -> tuple[str, str]:
        """A shard and one of its tensors of a format."""
        found = [
            (path.name, name)
            for path in sorted(TINY.glob("*.safetensors"))
            for name, entry in read_raw(path)[0].items()
            if name != "__metadata__" and entry["dtype"] == dtype and name.endswith(ends)
        ]
        return self.random.choice(found)

    def header(self, shard: str, edit: Callable[[Header], None]) -> None:
        edit_header(self.own(shard), edit)

    def entry(self, stored: str, /, **values: Any) -> str:
        """A tensor whose header entry says something else."""
        shard, name = self.tensor(stored)
        self.header(shard, lambda header: header[name].update(values))
        return name

    def config(self, **values: Any) -> None:
        edit_json(self.own("config.json"), lambda document: document["text_config"].update(values))

    def index(self, edit: Callable[[dict[str, Any]], None]) -> None:
        edit_json(self.own(INDEX_FILE), edit)

    def overwrite(self, dtype: str, value: bytes, ends: str = "", *, everywhere: bool = False) -> str:
        """Puts bytes into a tensor, at a random element or all over it."""
        shard, name = self.tensor(dtype, ends)
        header, _ = read_raw(TINY / shard)
        begin, end = header[name]["data_offsets"]
        start = (TINY / shard).stat().st_size - max(
            entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"
        )
        count = (end - begin) // len(value)
        with self.own(shard).open("r+b") as file:
            if everywhere:
                file.seek(start + begin)
                file.write(value * count)
            else:
                file.seek(start + begin + self.random.randrange(count) * len(value))
                file.write(value)
        return name


def renamed(damaged: Damaged, old: str, new: str) -> str:
    """All tensors with a part of their names replaced, in headers and index."""

    def rename(table: dict[str, Any]) -> None:
        for name in [name for name in table if old in name]:
            table[name.replace(old, new)] = table.pop(name)

    for path in sorted(TINY.glob("*.safetensors")):
        damaged.header(path.name, rename)
    damaged.index(lambda document: rename(document["weight_map"]))
    return new


def moved(header: Header, first: int) -> None:
    """Shifts the place of the last tensor by so many bytes."""
    name = max((key for key in header if key != "__metadata__"), key=lambda key: header[key]["data_offsets"][0])
    header[name]["data_offsets"] = [offset + first for offset in header[name]["data_offsets"]]


def swapped(damaged: Damaged) -> str:
    """Two tensors of one shard that the index puts into another."""
    _, name = damaged.tensor("BF16")
    shards = sorted({path.name for path in TINY.glob("*.safetensors")})
    damaged.index(lambda document: document["weight_map"].update({name: shards[-1]}))
    return name


def dropped(damaged: Damaged, dtype: str) -> str:
    """A tensor that is in the index and in no header."""
    shard, name = damaged.tensor(dtype)
    header, data = read_raw(TINY / shard)
    begin, end = header.pop(name)["data_offsets"]
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]
    damaged.own(shard).write_bytes(shard_bytes(header, data[:begin] + data[end:]))
    return name


def doubled(damaged: Damaged) -> str:
    """A shard that is there under a second name."""
    name = damaged.shard()
    shutil.copyfile(TINY / name, damaged.directory / "model-00009-of-00005.safetensors")
    return "model-00009-of-00005.safetensors"


def truncated(damaged: Damaged, keep: slice) -> str:
    """A shard cut to the bytes of a slice."""
    return raw(damaged, lambda data: data[keep])


def raw(damaged: Damaged, change: Callable[[bytes], bytes]) -> str:
    name = damaged.shard()
    path = damaged.own(name)
    path.write_bytes(change(path.read_bytes()))
    return name


def told(value: str, act: object) -> str:
    """`value`, behind an action that returns nothing."""
    del act
    return value


def generation(damaged: Damaged, text: str) -> str:
    (damaged.directory / "generation_config.json").write_text(text)
    return "generation_config.json"


def written(damaged: Damaged, name: str, content: bytes) -> str:
    damaged.own(name).write_bytes(content)
    return name


@dataclass(frozen=True)
class Case:
    """One way to damage a checkpoint."""

    damage: Callable[[Damaged], str]
    """Does it, and returns a name that the report must contain."""
    words: str
    """What else the report must say."""
    deep: bool = False
    """Whether only reading the weights shows it."""


NAN16, INF32, NAN32 = b"\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\xc0\x7f"
CASES = {
    # shards as files
    "a shard is missing": Case(lambda d: told(name := d.shard(), (d.directory / name).unlink()), "shards: missing"),
    "a shard is empty": Case(lambda d: truncated(d, slice(0)), "got 0 bytes, expected at least the 8"),
    "a shard ends in its header": Case(lambda d: truncated(d, slice(500)), "for its header"),
    "a shard ends in its data": Case(lambda d: truncated(d, slice(-1)), "bytes, expected"),
    "a shard has more bytes than tensors": Case(lambda d: raw(d, lambda data: data + b"\0" * 64), "bytes, expected"),
    "a shard is there twice": Case(doubled, "shards: unlisted"),
    "a shard is a folder": Case(
        lambda d: told(name := d.shard(), ((d.directory / name).unlink(), (d.directory / name).mkdir())),
        "not a regular file",
    ),
    "a shard is a page of the web": Case(lambda d: written(d, d.shard(), b"<!DOCTYPE html>" * 9), "no safetensors"),
    # headers
    "a header says a length beyond reason": Case(
        lambda d: raw(d, lambda data: b"\xff" * 8 + data[8:]), "header length"
    ),
    "a header is no JSON": Case(lambda d: raw(d, lambda data: data[:8] + b"{]" + data[10:]), "expected strict JSON"),
    "a header is a list": Case(lambda d: raw(d, lambda data: data[:8] + b"[" + data[9:]), "a JSON object"),
    "a header names a tensor twice": Case(
        lambda d: told(
            name := d.shard(),
            d.own(name).write_bytes(shard_bytes(b'{"a": {}, "a": {}}', read_raw(TINY / name)[1])),
        ),
        "appears twice",
    ),
    "metadata is no object of texts": Case(
        lambda d: told(name := d.shard(), d.header(name, lambda h: h.update(__metadata__={"format": 1}))),
        "an object of texts",
    ),
    "an entry lacks its shape": Case(
        lambda d: told((found := d.tensor("BF16"))[1], d.header(found[0], lambda h: h[found[1]].pop("shape"))),
        "exactly dtype, shape, data_offsets",
    ),
    "a dtype nobody knows": Case(lambda d: d.entry("BF16", dtype="F8_E3M4"), "expected one of I8"),
    "a shape with a negative axis": Case(lambda d: d.entry("BF16", shape=[-1]), "at most 8 integers"),
    "a shape with a fraction": Case(lambda d: d.entry("F32", shape=[1.5]), "at most 8 integers"),
    "a shape that its bytes do not fill": Case(lambda d: d.entry("BF16", shape=[1]), "bytes for BF16"),
    "offsets are no pair": Case(lambda d: d.entry("F8_E4M3", data_offsets=[0]), "two integers"),
    "tensors overlap": Case(lambda d: told(s := d.shard(), d.header(s, lambda h: moved(h, -2))), "overlap in the data"),
    "tensors leave a gap": Case(lambda d: told(s := d.shard(), d.header(s, lambda h: moved(h, 2))), "gap in the data"),
    "a name is not printable": Case(
        lambda d: told((f := d.tensor("F32"))[0], d.header(f[0], lambda h: h.update({"a\n": h.pop(f[1])}))),
        "printable ASCII",
    ),
    # index
    "the index is missing": Case(
        lambda d: told(INDEX_FILE, (d.directory / INDEX_FILE).unlink()), "model.safetensors alone"
    ),
    "the index is no JSON": Case(lambda d: written(d, INDEX_FILE, b"{"), "expected strict JSON"),
    "the index has no map": Case(lambda d: told("weight_map", d.index(lambda i: i.pop("weight_map"))), "non-empty"),
    "the index says another total": Case(
        lambda d: told("total_size", d.index(lambda i: i["metadata"].update(total_size=5))), "got 5 bytes"
    ),
    "the index leads out of the folder": Case(
        lambda d: told((f := d.tensor("I8"))[1], d.index(lambda i: i["weight_map"].update({f[1]: "../x.safetensors"}))),
        "plain name of a .safetensors file",
    ),
    "the index puts a tensor elsewhere": Case(swapped, "expected what model.safetensors.index.json lists"),
    "the index lists a tensor that is nowhere": Case(
        lambda d: told("ghost.weight", d.index(lambda i: i["weight_map"].update({"ghost.weight": d.shard()}))), "lacks"
    ),
    # schema
    "a routed expert is missing": Case(lambda d: dropped(d, "I8"), "checkpoint: missing"),
    "a scale is missing": Case(lambda d: dropped(d, "F8_E8M0"), "checkpoint: missing"),
    "codes are stored as integers of another kind": Case(lambda d: d.entry("F8_E4M3", dtype="I8"), "got I8"),
    "two axes changed places": Case(
        lambda d: told(
            (f := d.tensor("F8_E4M3", "wq_b.weight"))[1],
            d.header(f[0], lambda h: h[f[1]].update(shape=h[f[1]]["shape"][::-1])),
        ),
        "expected F8_E4M3",
    ),
    "scales of 128 x 128 blocks": Case(
        lambda d: told(
            (f := d.tensor("F8_E8M0", "wq_b.scale"))[1],
            d.header(f[0], lambda h: h[f[1]].update(shape=[h[f[1]]["shape"][0] * h[f[1]]["shape"][1], 1])),
        ),
        "expected F8_E8M0",
    ),
    "a layer more than the config has": Case(lambda d: renamed(d, "layers.0.", "layers.77."), "unexpected"),
    # config
    "config.json is missing": Case(
        lambda d: told("config.json", (d.directory / "config.json").unlink()), "got no such file"
    ),
    "config.json is no JSON": Case(lambda d: written(d, "config.json", b"{,}"), "config"),
    "the config has a key nobody knows": Case(lambda d: told("surprise", d.config(surprise=1)), "unknown keys"),
    "the config is of a wider model": Case(lambda d: told("hidden_size", d.config(hidden_size=31)), "multiple of 32"),
    "the config has other experts than the files": Case(
        lambda d: told("ffn.experts", d.config(n_routed_experts=40)), "checkpoint: missing"
    ),
    "Engram rows are no sum of primes": Case(
        lambda d: told("engram_num_embeddings[0]", d.config(engram_num_embeddings=[539, 587])), "primes"
    ),
    "the config is one of V4": Case(
        lambda d: told("deepseek_v4", edit_json(d.own("config.json"), lambda c: c.update(model_type="deepseek_v4"))),
        "only V4.1 can be read",
    ),
    "the config was requantised": Case(
        lambda d: told(
            "quant_method",
            edit_json(d.own("config.json"), lambda c: c["quantization_config"].update(quant_method="gptq")),
        ),
        "only the native FP8 checkpoint",
    ),
    # tokenizer and generation
    "the tokenizer is no tokenizer": Case(lambda d: written(d, "tokenizer.json", b"{}"), "a tokenizer.json"),
    "the tokenizer is another model's": Case(
        lambda d: told("engram_compressed_vocab_size", d.config(engram_compressed_vocab_size=400)), "re-hashes"
    ),
    "generation ends at another token": Case(lambda d: generation(d, '{"eos_token_id": 7}'), "expected 1"),
    "the generation config is no JSON": Case(lambda d: generation(d, "{"), "expected strict JSON"),
    # leftovers of other formats
    "names of DeepSeek-V4": Case(lambda d: renamed(d, "compressor.norm", "compressor.ape"), "a DeepSeek-V4 checkpoint"),
    "names of an FP8 converter": Case(lambda d: renamed(d, "wkv.scale", "wkv.weight_scale_inv"), "derivative"),
    "names of an NVFP4 converter": Case(lambda d: renamed(d, "w1.scale", "w1.weight_scale_2"), "NVFP4"),
    "names of GPTQ": Case(lambda d: renamed(d, "w1.weight", "w1.qweight"), "GPTQ or AWQ"),
    "names of llama.cpp": Case(lambda d: renamed(d, "layers.0.", "blk.0."), "GGUF"),
    "names of transformers": Case(lambda d: renamed(d, "layers.", "model.layers."), "converted checkpoint"),
    # weights
    "a NaN scale of a dense weight": Case(lambda d: d.overwrite("F8_E8M0", b"\xff", "wq_a.scale"), "byte 255", True),
    "a NaN scale of an expert": Case(lambda d: d.overwrite("F8_E8M0", b"\xff", "w2.scale"), "byte 255", True),
    "a NaN code": Case(lambda d: d.overwrite("F8_E4M3", b"\x7f"), "NaN or infinity", True),
    "a negative NaN code": Case(lambda d: d.overwrite("F8_E4M3", b"\xff"), "NaN or infinity", True),
    "a NaN in BF16": Case(lambda d: d.overwrite("BF16", NAN16), "NaN or infinity", True),
    "an infinity in FP32": Case(lambda d: d.overwrite("F32", INF32), "NaN or infinity", True),
    "a NaN in FP32": Case(lambda d: d.overwrite("F32", NAN32), "NaN or infinity", True),
    "an expert of zeros": Case(lambda d: d.overwrite("I8", b"\0", everywhere=True), "zero bytes", True),
    "a table of zeros": Case(
        lambda d: d.overwrite("F8_E4M3", b"\0", "embed.weight", everywhere=True), "zero bytes", True
    ),
    "a norm of zeros": Case(lambda d: d.overwrite("BF16", b"\0", "norm.weight", everywhere=True), "zero bytes", True),
}


def text_of(report: Report) -> str:
    """Every message and every name."""
    return "\n".join(f"{fault.message} {' '.join(fault.names)}" for fault in report.faults)


@pytest.mark.parametrize("case", CASES)
def test_a_corruption_is_found_and_named(case: str, tmp_path: Path) -> None:
    seed = sorted(CASES).index(case)
    damaged = Damaged(tmp_path / "checkpoint", seed)
    name = CASES[case].damage(damaged)
    shallow = examine(damaged.directory)
    assert bool(shallow.faults) != CASES[case].deep, "headers tell all that is not in the weights, and no more"
    report = examine(damaged.directory, DeepWish()) if CASES[case].deep else shallow
    found = text_of(report)
    assert name in found, found[:2000]
    assert CASES[case].words in found, found[:2000]
    json.dumps(report.to_dict())


def test_there_are_fifty_and_more() -> None:
    assert len(CASES) >= 50


def test_a_good_checkpoint_has_none_of_it(tmp_path: Path) -> None:
    report = examine(TINY, DeepWish())
    assert report.faults == ()
    assert report.deep is not None
    assert len(report.deep.sha256) == len(report.shards)
    assert examine(Damaged(tmp_path / "links", 0).directory, DeepWish()).faults == ()
