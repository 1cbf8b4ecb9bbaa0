"""Between a point and those it is computed from lies one module: what it does, its tensors, and where to read it."""

from collections.abc import Mapping
from dataclasses import dataclass

from flash41.tools.comparison.dataflow import LAYER, place


@dataclass(frozen=True, slots=True)
class Module:
    """What computes a point."""

    what: str
    tensors: str
    """Checkpoint names inside a layer; empty where there are none."""
    source: str
    """File of this package."""
    page: str
    """Page of docs/math."""


HYPER = Module("hyper-connection coefficients", "{side}_{fn,base,scale}", "kernels/reference/mhc.py", "mhc.md")
MODULES: Mapping[str, Module] = {
    "embed": Module("token embedding", "embed.weight", "model/backbone.py", "attention.md"),
    "resid.in": Module("streams behind the layer before", "", "kernels/reference/mhc.py", "mhc.md"),
    "engram.rows": Module(
        "n-gram hashing: token map, primes, multipliers, history", "", "engram/hashing.py", "engram.md"
    ),
    "engram.gate": Module(
        "Engram key and gate", "engram.wkv, q_weight, k_weight", "kernels/reference/engram.py", "engram.md"
    ),
    "resid.after_engram": Module(
        "Engram value added to the streams", "engram.wkv, embed", "model/engram_gate.py", "engram.md"
    ),
    "attn.in": Module(
        "collapse of the streams with the delayed pre, and attn_norm", "attn_norm", "model/block.py", "mhc.md"
    ),
    "attn.q": Module(
        "query: wq_a, q_norm, wq_b, rotation", "attn.wq_a, q_norm, wq_b", "model/attention.py", "attention.md"
    ),
    "attn.window_row": Module(
        "window row: wkv, kv_norm, rotation, FP8/32 round trip",
        "attn.wkv, kv_norm",
        "model/attention.py",
        "attention.md",
    ),
    "attn.latent": Module(
        "compressor: wkv, gated pooling of a group, norm", "attn.compressor", "model/compressor.py", "compressor.md"
    ),
    "attn.main_row": Module(
        "compressed row: rotation at row * ratio (YaRN table), FP4/16 round trip",
        "",
        "model/attention.py",
        "compressor.md",
    ),
    "index.key": Module(
        "index key: wk, k_norm, rotation, FP4/32", "attn.indexer.wk, k_norm", "model/indexer.py", "indexer.md"
    ),
    "index.q": Module("index query: wq_b, rotation, FP4/32", "attn.indexer.wq_b", "model/indexer.py", "indexer.md"),
    "index.weights": Module(
        "head weights with both square roots", "attn.indexer.weights_proj", "model/indexer.py", "indexer.md"
    ),
    "index.scores": Module(
        "index scores: ReLU, keys of the KV owner, visible rows", "", "kernels/reference/index.py", "indexer.md"
    ),
    "index.candidates": Module(
        "candidate blocks: newest pinned, best kept, ties to the smaller",
        "",
        "kernels/reference/index.py",
        "indexer.md",
    ),
    "index.selected": Module(
        "top-k: candidate mask, count, ties to the smaller row", "", "kernels/reference/index.py", "indexer.md"
    ),
    "attn.out": Module(
        "sparse attention: window mask, selected rows, sink, inverse rotation, wo_a, wo_b",
        "attn.attn_sink, wo_a, wo_b",
        "kernels/reference/attention.py",
        "attention.md",
    ),
    "resid.mid": Module(
        "streams behind attention: post and comb[source, destination]", "", "kernels/reference/mhc.py", "mhc.md"
    ),
    "ffn.in": Module(
        "collapse of the streams with attention's pre, and ffn_norm", "ffn_norm", "model/block.py", "mhc.md"
    ),
    "router.logits": Module("router: FP32 product", "ffn.gate.weight", "model/moe.py", "moe.md"),
    "router.ids": Module(
        "choice of experts: sqrt(softplus) plus bias, ties to the lowest",
        "ffn.gate.bias, bias_vl",
        "model/moe.py",
        "moe.md",
    ),
    "router.weights": Module(
        "weights of the experts: unbiased, normalised, route scale", "", "kernels/reference/router.py", "moe.md"
    ),
    "ffn.out": Module(
        "experts: clamps before SiLU, weight before w2, shared expert",
        "ffn.experts, shared_experts",
        "kernels/reference/expert.py",
        "moe.md",
    ),
    "final.resid": Module("streams behind the last layer", "", "kernels/reference/mhc.py", "mhc.md"),
    "final.pre": Module("coefficients of the last collapse", "", "model/backbone.py", "mhc.md"),
    "final.hidden": Module("last collapse of the streams", "", "model/backbone.py", "mhc.md"),
    "final.norm": Module("last norm", "norm", "model/backbone.py", "mhc.md"),
    "logits": Module("head in FP32", "head.weight", "model/backbone.py", "number-formats.md"),
    "dspark.taps": Module(
        "taps: inputs of the target layers, mean of the streams", "", "model/backbone.py", "dspark.md"
    ),
    "dspark.main_x": Module("main_proj and main_norm", "mtp.0.main_proj, main_norm", "model/drafter.py", "dspark.md"),
    "vision.block": Module("a block of the image tower", "vision.blocks", "model/vision.py", "vision.md"),
    "vision.norm": Module("last norm of the image tower", "vision.norm", "model/vision.py", "vision.md"),
    "vision.aligner": Module("aligner: 3x3 fold, GELU", "vision.aligner", "model/vision.py", "vision.md"),
}
DRAFTED = Module("draft stage or head", "mtp", "model/drafter.py", "dspark.md")


def module_of(point: str) -> Module:
    """The module that computes a point."""
    found = LAYER.fullmatch(point)
    kind = place(point).kind
    if (found is not None and found[1] == "mtp") or kind.startswith("draft."):
        return DRAFTED
    if kind.endswith((".pre", ".post", ".comb")) and kind not in MODULES:
        return Module(HYPER.what, f"hc_{kind.partition('.')[0]}_fn, _base, _scale", HYPER.source, HYPER.page)
    return MODULES.get(kind, Module("unknown to flash41", "", "", ""))
