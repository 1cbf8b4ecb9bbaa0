"""The draft block once more, from the specification, in FP64 numpy: contexts recomputed from the taps of the prompt.

    Drafter(folder, classes).block(ids, anchor)     what the drafter proposes behind a prompt

Shares nothing with the package; the parts that draft stages and layers have in common come from `oracles.text_model`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oracles.text_model import Array, Model


@dataclass(frozen=True, kw_only=True)
class Block:
    """Results of one block, a row for each drafted token."""

    ids: list[int]
    base_logits: Array
    logits: Array
    confidence: Array
    main_x: Array
    """Of every token of the prompt."""


class Drafter(Model):
    """One folder's draft stages and the text model in front of them."""

    def __init__(self, folder: Path, classes: Sequence[int], rounded: bool = False) -> None:
        super().__init__(folder, classes, rounded)
        self.taps: dict[str, Array] = {}

    def mixes(self, x: Array, name: str) -> tuple[Array, Array, Array]:
        """Every layer asks for the coefficients of its settled input first, Engram included: the moment of a tap."""
        self.taps[name] = self.store(x.mean(1))
        return super().mixes(x, name)

    def block(self, ids: Sequence[int], anchor: int) -> Block:
        c, f = self.config, self.files
        self.logits(ids)
        taps = np.concatenate([self.taps[f"layers.{i}.hc_attn"] for i in c["dspark_target_layer_ids"]], 1)
        main_x = self.norm(self.linear(taps, "mtp.0.main_proj"), "mtp.0.main_norm")
        width, stages = c["dspark_block_size"], c["num_nextn_predict_layers"]
        rows = [anchor, *[c["dspark_noise_token_id"]] * (width - 1)]
        positions = np.arange(len(ids), len(ids) + width, dtype=np.float64)
        x = np.repeat(f("embed.weight")[rows][:, None], c["hc_mult"], 1)
        pre = np.eye(c["hc_mult"])[[0] * width]
        for stage in range(stages):
            name = f"mtp.{stage}"
            for part in ("attn", "ffn"):
                coefficients = self.mixes(x, f"{name}.hc_{part}")
                u = self.norm(self.store((pre[:, :, None] * x).sum(1)), f"{name}.{part}_norm")
                y = self.stage_attention(u, main_x, positions, name) if part == "attn" else self.stage_experts(u, name)
                pre, post, comb = coefficients
                x = self.store(post[:, :, None] * y[:, None] + np.einsum("tjk,tjd->tkd", comb, x))
        z = self.store((pre[:, :, None] * x).sum(1))
        return self.heads(z, anchor, f"mtp.{stages - 1}", main_x)

    def heads(self, z: Array, anchor: int, name: str, main_x: Array) -> Block:
        f, token, logits, confidence, ids = self.files, anchor, [], [], list[int]()
        base = self.norm(z, f"{name}.norm") @ f("head.weight").T
        embed, head = (f(f"{name}.markov_head.{part}.weight") for part in ("embed", "head"))
        for k in range(len(z)):
            logits.append(base[k] + head @ embed[token])
            confidence.append(f(f"{name}.confidence_head.proj.weight")[0] @ np.concatenate((z[k], embed[token])))
            token = int(logits[-1].argmax())
            ids.append(token)
        return Block(ids=ids, base_logits=base, logits=np.stack(logits), confidence=np.stack(confidence), main_x=main_x)

    def window_rows(self, x: Array, positions: Array, name: str) -> Array:
        rows = self.norm(self.linear(x, f"{name}.attn.wkv"), f"{name}.attn.kv_norm")
        return self.fp8(self.turn(rows, positions, 0))

    def stage_attention(self, x: Array, main_x: Array, positions: Array, name: str) -> Array:
        c, count = self.config, len(main_x)
        heads, d = c["num_attention_heads"], c["head_dim"]
        first = max(0, count - c["sliding_window"])
        past = np.arange(first, count, dtype=np.float64)
        keys = np.concatenate((
            self.window_rows(main_x[first:], past, name),
            self.window_rows(x, positions, name),
        ))  # fmt: skip
        qr = self.norm(self.linear(x, f"{name}.attn.wq_a"), f"{name}.attn.q_norm")
        q = self.turn(self.linear(qr, f"{name}.attn.wq_b").reshape(len(x), heads, d), positions, 0)
        sink = self.files(f"{name}.attn.attn_sink")
        outputs = self.store(np.stack([self.attend(row, keys, sink) for row in q]))
        grouped = self.turn(outputs, positions, 0, -1).reshape(len(x), c["o_groups"], -1)
        matrices = self.files.scaled(f"{name}.attn.wo_a").reshape(c["o_groups"], c["o_lora_rank"], -1)
        mixed = self.store(np.einsum("tgi,gri->tgr", grouped, matrices)).reshape(len(x), -1)
        return self.linear(mixed, f"{name}.attn.wo_b")

    def stage_experts(self, x: Array, name: str) -> Array:
        c, f, prefix = self.config, self.files, f"{name}.ffn"
        scores = np.sqrt(np.logaddexp(0, x @ f(f"{prefix}.gate.weight").T))
        keys, y = scores + f(f"{prefix}.gate.bias"), np.zeros_like(x)
        for t, row in enumerate(keys):
            chosen = sorted(range(len(row)), key=lambda e: (-row[e], e))[: c["dspark_num_experts_per_tok"]]
            total = scores[t, chosen].sum() + 1e-20
            for expert in sorted(chosen):
                weight = c["routed_scaling_factor"] * scores[t, expert] / total
                y[t] += self.expert(x[t], f"{prefix}.experts.{expert}", weight)
            y[t] += self.expert(x[t], f"{prefix}.shared_experts", 1.0)
        return self.store(y)
