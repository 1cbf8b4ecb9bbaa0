"""The text model once more, from the specification, in FP64 numpy: whole prompts, dense, one position at a time.

Shares nothing with the package: files are read by their layout, formats and roundings are those of ml_dtypes, every
layer recomputes its rows from the prompt instead of a cache, and a selection is a sort of Python tuples.

    Model(folder, classes).logits(ids)                  profile fp32: dequantised weights, no store, no rounding
    Model(folder, classes, rounded=True).logits(ids)    profile vendor: every store and every rounding of the model

`classes` is the compressed id of each token id.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from oracles.engram import primes_from, rows, window

Array = NDArray[np.float64]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
DTYPES = {
    "F32": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": np.uint8,
    "I8": np.uint8,
}


class Files:
    """Tensors of a folder by name, in FP64."""

    def __init__(self, folder: Path) -> None:
        self._found: dict[str, NDArray[Any]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            content = path.read_bytes()
            start = 8 + int.from_bytes(content[:8], "little")
            for name, entry in json.loads(content[8:start]).items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    raw = np.frombuffer(content[start + begin : start + end], DTYPES[entry["dtype"]])
                    self._found[name] = raw.reshape(entry["shape"])

    def __call__(self, name: str) -> Array:
        return self._found[name].astype(np.float64)

    def scaled(self, prefix: str) -> Array:
        codes, scales = (
            self._found[f"{prefix}.weight"],
            2.0 ** (self._found[f"{prefix}.scale"].astype(np.float64) - 127),
        )
        if codes.dtype == np.uint8:  # two FP4 codes a byte, the even channel low; one scale per row and 32 channels
            values = np.stack((E2M1[codes & 15], E2M1[codes >> 4]), -1).reshape(len(codes), -1)
            return values * scales.repeat(32, 1)
        tall = 1 if len(scales) == len(codes) else 32
        return codes.astype(np.float64) * scales.repeat(tall, 0).repeat(32, 1)


def bf16(x: Array) -> Array:
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def power_of_two_at_least(t: Array) -> Array:
    mantissa, exponent = np.frexp(t)
    return np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))


def rounded_groups(x: Array, width: int, floor: float, largest: float, element: Any, scale: Any = None) -> Array:
    """x on the grid of a format with one scale per `width` channels: a power of two, or a number of format `scale`."""
    groups = x.reshape(*x.shape[:-1], -1, width)
    t = np.maximum(abs(groups).max(-1, keepdims=True), floor) / largest
    s = power_of_two_at_least(t) if scale is None else np.minimum(t, 448).astype(np.float32).astype(scale)
    s = s.astype(np.float64)
    codes = np.clip(groups / s, -largest, largest).astype(np.float32).astype(element)
    return (codes.astype(np.float64) * s).reshape(x.shape)


def fp8_32(x: Array) -> Array:
    return rounded_groups(x, 32, 1e-4, 448, ml_dtypes.float8_e4m3fn)


def fp4_32(x: Array) -> Array:
    return rounded_groups(x, 32, 6 * 2.0**-126, 6, ml_dtypes.float4_e2m1fn)


def fp4_16(x: Array) -> Array:
    return rounded_groups(x, 16, 6 * 2.0**-9, 6, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn)


def unrounded(x: Array) -> Array:
    return x


def rms(v: Array, w: Array | float, eps: float) -> Array:
    return w * v / np.sqrt((v * v).mean(-1, keepdims=True) + eps)


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


class Model:
    """One folder's configuration and tensors."""

    def __init__(self, folder: Path, classes: Sequence[int], rounded: bool = False) -> None:
        self.config = json.loads((folder / "config.json").read_text())["text_config"]
        self.files, self.classes = Files(folder), classes
        roundings = (bf16, fp8_32, fp4_16, fp4_32) if rounded else (unrounded,) * 4
        self.store, self.fp8, self.fp4_main, self.fp4_index = roundings
        # For replays: by layer, the position before which later rows read no window; by owner, rows that are given.
        self.window_starts: dict[int, int] = {}
        self.given: dict[int, tuple[Array, ...]] = {}
        self.owned: dict[int, tuple[Array, ...]] = {}

    def linear(self, x: Array, name: str) -> Array:
        """A scaled weight's product, stored."""
        return self.store(self.fp8(x) @ self.files.scaled(name).T)

    def plain(self, x: Array, name: str) -> Array:
        """A BF16 weight's product, stored."""
        return self.store(x @ self.files(f"{name}.weight").T)

    def norm(self, x: Array, name: str) -> Array:
        return self.store(rms(x, self.files(f"{name}.weight"), self.config["rms_norm_eps"]))

    def logits(self, ids: Sequence[int]) -> Array:
        c, f = self.config, self.files
        x = np.repeat(f("embed.weight")[list(ids)][:, None], c["hc_mult"], 1)
        pre = np.zeros(x.shape[:2])
        pre[:, 0] = 1
        self.planes: dict[str, Any] = {"kv": None, "selected": None, "blocks": None}
        for layer in range(c["num_hidden_layers"]):
            name = f"layers.{layer}"
            if layer in c["engram_layer_ids"]:
                x = self.engram(x, ids, layer)
            for part, function in (("attn", self.attention), ("ffn", self.experts)):
                coefficients = self.mixes(x, f"{name}.hc_{part}")
                u = self.store((pre[:, :, None] * x).sum(1))
                y = function(self.norm(u, f"{name}.{part}_norm"), layer)
                pre, post, comb = coefficients
                x = self.store(post[:, :, None] * y[:, None] + np.einsum("tjk,tjd->tkd", comb, x))
        h = self.norm(self.store((pre[:, :, None] * x).sum(1)), "norm")
        logits: Array = h @ f("head.weight").T
        return logits

    def mixes(self, x: Array, name: str) -> tuple[Array, Array, Array]:
        c, f, n = self.config, self.files, self.config["hc_mult"]
        v, eps = x.reshape(len(x), -1), c["hc_eps"]
        m = (v @ f(f"{name}_fn").T) / np.sqrt((v * v).mean(-1, keepdims=True) + c["rms_norm_eps"])
        scale = f(f"{name}_scale").repeat([n, n, n * n])
        m = m * scale + f(f"{name}_base")
        comb = m[:, 2 * n :].reshape(-1, n, n)
        comb = np.exp(comb - comb.max(-1, keepdims=True))
        comb = comb / comb.sum(-1, keepdims=True) + eps
        for turn in range(c["hc_sinkhorn_iters"]):
            comb = comb if turn == 0 else comb / (comb.sum(2, keepdims=True) + eps)
            comb = comb / (comb.sum(1, keepdims=True) + eps)
        return sigmoid(m[:, :n]) + eps, 2 * sigmoid(m[:, n : 2 * n]), comb

    def angles(self, positions: Array, ratio: int) -> Array:
        c = self.config
        width, yarn = c["qk_rope_head_dim"], c["rope_scaling"]
        base = c["compress_rope_theta"] if ratio else c["rope_theta"]
        f = np.array([float(base) ** (-2 * i / width) for i in range(width // 2)])
        if ratio:
            original = yarn["original_max_position_embeddings"]
            low, high = (
                width * np.log(original / (2 * np.pi * yarn[beta])) / (2 * np.log(base))
                for beta in ("beta_fast", "beta_slow")
            )
            low, high = max(np.floor(low), 0), min(np.ceil(high), width - 1)
            ramp = np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
            f = f * (1 - ramp) + f / yarn["factor"] * ramp
        # The one place where precision is part of the definition: an angle is an FP32 product.
        return np.asarray(np.float32(positions)[:, None] * np.float32(f)[None], np.float64)

    def turn(self, x: Array, positions: Array, ratio: int, sign: int = 1) -> Array:
        width = self.config["qk_rope_head_dim"]
        angle = sign * self.angles(positions, ratio)
        angle = angle.reshape(len(x), *[1] * (x.ndim - 2), width // 2)
        tail = x[..., -width:].reshape(*x.shape[:-1], width // 2, 2)
        z = (tail[..., 0] + 1j * tail[..., 1]) * np.exp(1j * angle)
        turned = np.stack((z.real, z.imag), -1).reshape(*x.shape[:-1], width)
        return self.store(np.concatenate((x[..., :-width], turned), -1))

    def attention(self, x: Array, layer: int) -> Array:
        c, name = self.config, f"layers.{layer}.attn"
        num, heads, d, ratio = len(x), c["num_attention_heads"], c["head_dim"], c["compress_ratios"][layer]
        positions = np.arange(num, dtype=np.float64)
        qr = self.norm(self.linear(x, f"{name}.wq_a"), f"{name}.q_norm")
        q = self.turn(self.linear(qr, f"{name}.wq_b").reshape(num, heads, d), positions, ratio)
        kv = self.fp8(self.turn(self.norm(self.linear(x, f"{name}.wkv"), f"{name}.kv_norm"), positions, ratio))
        if layer in c["kv_source_layer_ids"]:
            self.compress(x, layer, ratio)
        if layer in c["index_source_layer_ids"]:
            self.select(x, qr, layer, ratio)
        sink, outputs = self.files(f"{name}.attn_sink"), np.zeros((num, heads, d))
        for p in range(num):
            start = self.window_starts.get(layer, 0)
            keys = kv[max(0, p - c["sliding_window"] + 1, start if p >= start else 0) : p + 1]
            if ratio:
                keys = np.concatenate((keys, self.planes["kv"][0][self.planes["selected"][p]]))
            outputs[p] = self.attend(q[p], keys, sink)
        grouped = self.turn(self.store(outputs), positions, ratio, -1).reshape(num, c["o_groups"], -1)
        matrices = self.files.scaled(f"{name}.wo_a").reshape(c["o_groups"], c["o_lora_rank"], -1)
        return self.linear(self.store(np.einsum("tgi,gri->tgr", grouped, matrices)).reshape(num, -1), f"{name}.wo_b")

    def attend(self, q: Array, keys: Array, sink: Array) -> Array:
        """Blocks of 64 keys, each block's probabilities stored against the largest logit so far."""
        logits = q @ keys.T / np.sqrt(q.shape[1])
        largest = np.full(len(q), -1e30)
        total, denominator = np.zeros(q.shape), np.zeros(len(q))
        for first in range(0, len(keys), 64):
            block = logits[:, first : first + 64]
            before, largest = largest, np.maximum(largest, block.max(1))
            e, fade = np.exp(block - largest[:, None]), np.exp(before - largest)
            denominator = denominator * fade + e.sum(1)
            total = total * fade[:, None] + self.store(e) @ keys[first : first + 64]
        attended: Array = total / (denominator + np.exp(sink - largest))[:, None]
        return attended

    def compress(self, x: Array, layer: int, ratio: int) -> None:
        name = f"layers.{layer}.attn"
        v = x @ self.files(f"{name}.compressor.wkv.weight").T
        if ratio == 2:
            count = len(x) // 2
            gate = np.exp((x @ self.files(f"{name}.compressor.wgate.weight").T)[: 2 * count].reshape(count, 2, -1))
            v = (v[: 2 * count].reshape(count, 2, -1) * gate).sum(1) / gate.sum(1)
        latent = self.norm(self.store(v), f"{name}.compressor.norm")
        first = np.arange(len(latent), dtype=np.float64) * ratio
        key = self.norm(self.plain(latent, f"{name}.indexer.wk"), f"{name}.indexer.k_norm")
        rows = self.fp4_main(self.turn(latent, first, ratio))
        computed = (rows, self.fp4_index(self.turn(key, first, ratio)))
        given = self.given.get(layer, tuple(plane[:0] for plane in computed))
        joined = tuple(np.concatenate((old, new[len(old) :])) for old, new in zip(given, computed, strict=True))
        self.planes["kv"] = self.owned[layer] = joined

    def select(self, x: Array, qr: Array, layer: int, ratio: int) -> None:
        c, name = self.config, f"layers.{layer}.attn.indexer"
        heads, d, size = c["index_n_heads"], c["index_head_dim"], c["candidate_block_size"]
        positions = np.arange(len(x), dtype=np.float64)
        q = self.fp4_index(self.turn(self.linear(qr, f"{name}.wq_b").reshape(len(x), heads, d), positions, ratio))
        weights = self.plain(x, f"{name}.weights_proj") / np.sqrt(d * heads)
        source, keys = c["candidate_source_layer_id"], self.planes["kv"][1]
        scores = np.einsum("th,thn->tn", weights, np.maximum(np.einsum("thd,nd->thn", q, keys), 0))
        selected, blocks = [], []
        for p in range(len(x)):
            visible = (p + 1) // ratio
            allowed = set(range(visible))
            if layer == source:
                best = {b: max(scores[p, b * size : min(visible, b * size + size)]) for b in range(-(-visible // size))}
                newest = (visible - 1) // size
                ranked = sorted(best, key=lambda b: (b != newest, -best[b], b))
                blocks.append(ranked[: c["candidate_topk_blocks"]])
            elif source != -1 and layer > source and layer not in c["kv_source_layer_ids"]:
                allowed = {row for row in allowed if row // size in self.planes["blocks"][p]}
            ranked = sorted(allowed, key=lambda row: (-scores[p, row], row))
            selected.append(sorted(ranked[: c["index_topk"]]))
        self.planes["selected"] = selected
        self.planes["blocks"] = blocks or self.planes["blocks"]

    def experts(self, x: Array, layer: int) -> Array:
        c, f, name = self.config, self.files, f"layers.{layer}.ffn"
        scores = np.sqrt(np.logaddexp(0, x @ f(f"{name}.gate.weight").T))
        keys, y = scores + f(f"{name}.gate.bias"), np.zeros_like(x)
        for t in range(len(x)):
            chosen = sorted(range(len(keys[t])), key=lambda e: (-keys[t, e], e))[: c["num_experts_per_tok"]]
            total = scores[t, chosen].sum() + 1e-20
            for expert in sorted(chosen):
                weight = c["routed_scaling_factor"] * scores[t, expert] / total
                y[t] += self.expert(x[t], f"{name}.experts.{expert}", weight)
            y[t] += self.expert(x[t], f"{name}.shared_experts", 1.0)
        return self.store(y)

    def expert(self, h: Array, name: str, weight: float) -> Array:
        limit = self.config["swiglu_limit"]
        gate, up = np.minimum(self.linear(h, f"{name}.w1"), limit), np.clip(self.linear(h, f"{name}.w3"), -limit, limit)
        return self.linear(self.store(gate * sigmoid(gate) * up * weight), f"{name}.w2")

    def engram(self, x: Array, ids: Sequence[int], layer: int) -> Array:
        c, f, name, eps = self.config, self.files, f"layers.{layer}.engram", self.config["rms_norm_eps"]
        table, order, heads = c["engram_layer_ids"].index(layer), c["engram_max_ngram_size"], c["engram_n_heads"]
        classes = len(set(self.classes))
        draws = np.random.default_rng(10007 * layer).integers(0, (2**63 - 1) // classes // 2, order, dtype=np.int64)
        primes = primes_from(c["engram_vocab_size"], len(c["engram_layer_ids"]) * (order - 1) * heads)
        primes = primes[table * (order - 1) * heads :]
        moduli = [primes[n * heads : (n + 1) * heads] for n in range(order - 1)]
        compressed, pad = [self.classes[i] for i in ids], self.classes[c["engram_pad_token_id"]]
        values = f.scaled(f"{name}.embed")
        e = np.stack([
            values[rows(window(compressed, p, pad, order), [2 * int(r) + 1 for r in draws], moduli)].ravel()
            for p in range(len(ids))
        ])  # fmt: skip
        streams, width = x.shape[1:]
        kv = self.linear(self.store(e), f"{name}.wkv")
        key, value = kv[:, : streams * width].reshape(x.shape), kv[:, streams * width :]
        dot = (rms(x, f(f"{name}.q_weight"), eps) * rms(key, f(f"{name}.k_weight"), eps)).sum(-1) / np.sqrt(width)
        gate = sigmoid(np.copysign(np.sqrt(np.maximum(abs(dot), 1e-6)), dot))
        return self.store(x + gate[:, :, None] * value[:, None])
