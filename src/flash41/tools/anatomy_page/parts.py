"""The mechanisms outside of attention: residual mixing, experts, Engram, drafter, vision tower, stored rows.

spec: mhc.md, moe.md, engram.md, dspark.md, vision.md, number-formats.md section 9.
"""

from flash41.checkpoint.schema import PIXEL_CHANNELS
from flash41.config.architecture import ModelConfig
from flash41.tools.anatomy_page.steps import Step, Steps
from flash41.tools.anatomy_page.tensors import Tensors

STORED_ROWS = (
    ("window row", "E4M3", "E8M0", 32, "every layer"),
    ("main row", "E2M1", "E4M3", 16, "every layer that writes a plane"),
    ("index key and query", "E2M1", "E8M0", 32, "every layer that scores"),
    ("input of an FP8 or FP4 product", "E4M3", "E8M0", 32, "every quantised projection and expert"),
)
"""What the model rounds while it runs: element, scale, channels of a group, where."""


def parts(config: ModelConfig, tensors: Tensors) -> dict[str, object]:
    """One record per mechanism; None for tables and draft stages that this model lacks."""
    return {
        "mhc": _mhc(config),
        "moe": _moe(config),
        "engram": _engram(config, tensors),
        "draft": _draft(config, tensors),
        "vision": _vision(config, tensors),
        "rows": [
            {"label": label, "element": element, "scale": scale, "group": group, "where": where}
            for label, element, scale, group, where in STORED_ROWS
        ],
    }


def _mhc(config: ModelConfig) -> dict[str, object]:
    streams = config.mhc.streams
    return {
        "streams": streams,
        "iterations": config.mhc.sinkhorn_iterations,
        "num_values": streams * (streams + 2),
        "num_inputs": streams * config.hidden_size,
    }


def _moe(config: ModelConfig) -> dict[str, object]:
    moe = config.moe
    return {
        "num_experts": moe.num_experts,
        "num_chosen": moe.num_experts_per_token,
        "inner": moe.intermediate_size,
        "hidden": config.hidden_size,
        "limit": moe.swiglu_limit,
        "scale": moe.route_scale,
        "per_expert": 3 * moe.intermediate_size * config.hidden_size,
    }


def _engram(config: ModelConfig, tensors: Tensors) -> dict[str, object] | None:
    engram = config.engram
    if not engram.layer_ids:
        return None
    tables = []
    for layer_id, rows in zip(engram.layer_ids, engram.table_rows, strict=True):
        names = ("embed.weight", "embed.scale", "wkv.weight")
        weights = tensors.weights(f"layers.{layer_id}.engram.", names)
        tables.append({"layer": layer_id, "rows": rows, "weights": weights})
    return {
        "tables": tables,
        "orders": list(range(2, engram.max_ngram + 1)),
        "heads": engram.num_heads,
        "columns": engram.num_columns,
        "channels": engram.head_dim,
        "width": engram.width,
    }


def _draft(config: ModelConfig, tensors: Tensors) -> dict[str, object] | None:
    draft = config.dspark
    if draft.num_stages == 0:
        return None
    return {
        "stages": draft.num_stages,
        "block": draft.block_size,
        "noise": draft.noise_token_id,
        "taps": list(draft.target_layer_ids),
        "num_experts": draft.num_experts,
        "num_chosen": draft.num_experts_per_token,
        "window": config.attention.window,
        "steps": _draft_steps(config, tensors),
    }


def _draft_steps(config: ModelConfig, tensors: Tensors) -> list[Step]:
    draft, width, block = config.dspark, config.hidden_size, config.dspark.block_size
    steps, last = Steps(tensors), f"mtp.{draft.num_stages - 1}."
    taps = ", ".join(map(str, draft.target_layer_ids))
    does = f"Means over the streams that enter layers {taps}, behind each other."
    steps.add("taps", does, ["T", len(draft.target_layer_ids) * width], "BF16", rail="one", part="draft")
    weights = ["mtp.0.main_proj.weight", "mtp.0.main_norm.weight"]
    does = "One row per token of the target; the stages see it as window rows only."
    steps.add("main projection", does, ["T", width], "BF16", rail="one", weights=weights, part="draft")
    does = (
        f"The newest token and {block - 1} rows of noise (id {draft.noise_token_id}), as {config.mhc.streams} streams."
    )
    steps.add("block", does, [block, config.mhc.streams, width], "BF16", rail="streams", part="draft")
    does = (
        f"{draft.num_stages} blocks with a window and {draft.num_experts_per_token} of {draft.num_experts} experts; "
        f"each row sees the context and all {block} rows."
    )
    steps.add("stages", does, [block, config.mhc.streams, width], "BF16", rail="streams", part="draft")
    does = "Collapse, norm, and the head of the target."
    steps.add("base logits", does, [block, config.vocab_size], "FP32", rail="one", weights=[f"{last}norm.weight"])
    weights = [f"{last}markov_head.{name}.weight" for name in ("embed", "head")]
    does = "Adds what the token drafted before says, one row after the other."
    steps.add("Markov head", does, [block, config.vocab_size], "FP32", rail="one", weights=weights, part="draft")
    does = "Logit of the chance that a draft is accepted, given the ones before it."
    weights = [f"{last}confidence_head.proj.weight"]
    steps.add("confidence", does, [block], "FP32", rail="one", weights=weights, part="draft")
    return steps.steps


def _vision(config: ModelConfig, tensors: Tensors) -> dict[str, object]:
    vision = config.vision
    return {
        "layers": vision.num_layers,
        "patch": vision.patch_size,
        "fold": vision.downsample_ratio,
        "max_tokens": vision.max_image_tokens,
        "min_pixels": vision.min_pixels,
        "steps": _vision_steps(config, tensors),
    }


def _vision_steps(config: ModelConfig, tensors: Tensors) -> list[Step]:
    vision, width = config.vision, config.vision.hidden_size
    steps, fold = Steps(tensors), vision.downsample_ratio
    values = PIXEL_CHANNELS * vision.patch_size**2
    does = f"Letterboxed to whole patches of {vision.patch_size} x {vision.patch_size} pixels."
    steps.add("patches", does, ["P", values], "BF16", rail="one")
    weights = ["vision.patch_embed.proj.weight", "vision.patch_embed.proj.bias"]
    steps.add("patch embedding", "With bias; no class token.", ["P", width], "BF16", rail="one", weights=weights)
    does = (
        f"{vision.num_layers} times: attention of {vision.num_heads} heads inside the picture, in both directions, "
        "with 2D RoPE; then a gated MLP."
    )
    weights = [f"vision.blocks.0.{name}.weight" for name in ("attn.wqkv", "attn.wo", "mlp.w1", "mlp.w2")]
    steps.add("blocks", does, ["P", width], "BF16", weights=weights, part="vision")
    steps.add("norm", "RMSNorm.", ["P", width], "BF16", rail="one", weights=["vision.norm.weight"])
    does = f"{fold} x {fold} patches become one row of channels; two products with GELU between."
    weights = ["aligner.w1.weight", "aligner.w2.weight"]
    out = [f"P/{fold * fold}", config.hidden_size]
    steps.add("aligner", does, out, "BF16", rail="one", weights=weights, part="vision")
    does = f"START, rows of the picture each with NEWLINE, END: at most {vision.max_image_tokens} positions."
    out = ["span", config.hidden_size]
    weights = ["image_start", "image_newline", "image_end"]
    steps.add("span", does, out, "BF16", rail="one", weights=weights, part="vision")
    return steps.steps
