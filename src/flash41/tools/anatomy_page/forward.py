"""The shape at every step of a forward: before the layers, in a layer of each kind, and behind them.

Layers that differ in nothing that is drawn are of one kind; a step list is made once per kind.  `T` counts the rows of
the forward, `n` the compressed rows a query sees.  spec: mhc.md section 1, attention.md sections 3 to 11.
"""

from flash41.config.architecture import ModelConfig
from flash41.config.topology import LayerSpec, Topology
from flash41.tools.anatomy_page.attention_steps import add_attention
from flash41.tools.anatomy_page.steps import Step, Steps
from flash41.tools.anatomy_page.tensors import Tensors

EXPERTS = ("ffn.experts.0.w1.weight", "ffn.experts.0.w3.weight", "ffn.experts.0.w2.weight")
SHARED = ("ffn.shared_experts.w1.weight", "ffn.shared_experts.w3.weight", "ffn.shared_experts.w2.weight")


def forward(config: ModelConfig, topology: Topology, tensors: Tensors) -> dict[str, object]:
    """Steps before, in and behind the layers; `kinds[i]` serves the layers whose entry in `kind_of` is i."""
    layers = (*topology.layers, *topology.drafts)
    kinds: dict[tuple[object, ...], int] = {}
    bodies: list[list[Step]] = []
    kind_of = []
    for layer in layers:
        kind = _kind(layer)
        if kind not in kinds:
            kinds[kind] = len(bodies)
            bodies.append(block_steps(config, layer, tensors))
        kind_of.append(kinds[kind])
    return {
        "before": _before(config, tensors),
        "kinds": bodies,
        "kind_of": kind_of,
        "behind": _behind(config, tensors),
        "streams": config.mhc.streams,
        "num_layers": config.num_layers,
    }


def tensor_prefix(config: ModelConfig, layer: LayerSpec) -> str:
    """What the names of a layer's tensors begin with."""
    if layer.is_draft:
        return f"mtp.{layer.layer_id - config.num_layers}."
    return f"layers.{layer.layer_id}."


def _kind(layer: LayerSpec) -> tuple[object, ...]:
    """What tells drawn layers apart; two Engram tables have different sizes, so such a layer is its own kind."""
    table = layer.layer_id if layer.has_engram else None
    blocks = layer.produces_candidates, layer.bounded_by_candidates
    return layer.mode, layer.ratio, *blocks, table, layer.is_tap, layer.is_draft


def _before(config: ModelConfig, tensors: Tensors) -> list[Step]:
    steps, width = Steps(tensors), config.hidden_size
    steps.add("token ids", "Rows of all requests behind each other.", ["T"], "int", rail="one")
    does = "Looks a row up; the rows of a picture's span come from the vision tower."
    steps.add("embed", does, ["T", width], "BF16", rail="one", weights=["embed.weight"])
    steps.add(
        "widen",
        f"Copies the row to {config.mhc.streams} residual streams; pre begins as one-hot on stream 0.",
        ["T", config.mhc.streams, width],
        "BF16",
        rail="streams",
        part="mhc",
    )
    return steps.steps


def _behind(config: ModelConfig, tensors: Tensors) -> list[Step]:
    steps, width = Steps(tensors), config.hidden_size
    steps.add("collapse", "Sum of the streams, weighted by the last pre.", ["T", width], "BF16", rail="one", part="mhc")
    steps.add("norm", "RMSNorm.", ["T", width], "BF16", rail="one", weights=["norm.weight"])
    does = "Held and multiplied in FP32; not tied to embed."
    steps.add("head", does, ["T", config.vocab_size], "FP32", rail="one", weights=["head.weight"])
    return steps.steps


def block_steps(config: ModelConfig, layer: LayerSpec, tensors: Tensors) -> list[Step]:
    """One layer, in the order of its computation."""
    steps = Steps(tensors, tensor_prefix(config, layer))
    if layer.has_engram:
        _add_engram(steps, config)
    width = config.hidden_size
    if layer.is_tap:
        does = "Mean over the streams, handed to the drafter; changes nothing here."
        steps.add("tap", does, ["T", width], "BF16", rail="streams", part="draft")
    _add_mixes(steps, config, "attn", "pre of the sub-layer before")
    steps.add("attn_norm", "RMSNorm.", ["T", width], "BF16", weights=["attn_norm.weight"])
    add_attention(steps, config, layer)
    _add_apply(steps, config)
    _add_mixes(steps, config, "ffn", "pre that the attention sub-layer predicted")
    steps.add("ffn_norm", "RMSNorm.", ["T", width], "BF16", weights=["ffn_norm.weight"])
    _add_experts(steps, config, layer)
    _add_apply(steps, config)
    return steps.steps


def _add_engram(steps: Steps, config: ModelConfig) -> None:
    engram, streams, width = config.engram, config.mhc.streams, config.hidden_size
    does = f"Hashes the last 2 to {engram.max_ngram} tokens and gathers {engram.num_columns} rows on the host."
    steps.add("Engram rows", does, ["T", engram.width], "FP8", weights=["engram.embed.weight"], part="engram")
    does = f"{streams} keys, one per stream, and one value for all of them."
    out = ["T", streams + 1, width]
    steps.add("Engram wkv", does, out, "BF16", weights=["engram.wkv.weight"], part="engram")
    does = "gate = sigmoid(signed root of the normed product of stream and key); stream + gate * value."
    weights = ["engram.q_weight", "engram.k_weight"]
    steps.add("Engram gate", does, ["T", streams, width], "BF16", rail="streams", weights=weights, part="engram")


def _add_mixes(steps: Steps, config: ModelConfig, sub_layer: str, pre: str) -> None:
    streams, width = config.mhc.streams, config.hidden_size
    names = [f"hc_{sub_layer}_{name}" for name in ("fn", "base", "scale")]
    does = (
        f"{streams} pre, {streams} post, {streams} x {streams} comb by {config.mhc.sinkhorn_iterations} Sinkhorn steps."
    )
    out = ["T", streams * (streams + 2)]
    steps.add(f"mHC mixes, {sub_layer}", does, out, "FP32", rail="streams", weights=names, part="mhc")
    steps.add("collapse", f"Sum of the streams, weighted by the {pre}.", ["T", width], "BF16", part="mhc")


def _add_apply(steps: Steps, config: ModelConfig) -> None:
    does = "stream k = post[k] * output + sum over j of comb[j, k] * stream j."
    out = ["T", config.mhc.streams, config.hidden_size]
    steps.add("mHC apply", does, out, "BF16", rail="streams", part="mhc")


def _add_experts(steps: Steps, config: ModelConfig, layer: LayerSpec) -> None:
    moe = config.dspark if layer.is_draft else config.moe
    count, chosen = moe.num_experts, moe.num_experts_per_token
    biased = "bias" if layer.is_draft else "bias (bias_vl in a picture)"
    does = f"sqrt(softplus(.)); the {chosen} best of score + {biased}, weights from the score alone, summing to "
    does += f"{config.moe.route_scale:g}."
    names = ["ffn.gate.weight", "ffn.gate.bias", "ffn.gate.bias_vl"]
    steps.add("router", does, ["T", chosen], "int, FP32", weights=names, part="moe")
    does = f"{chosen} of {count}: w2(weight * silu(w1 h) * (w3 h)), clamped at {config.moe.swiglu_limit:g}."
    steps.add("routed experts", does, ["T", config.hidden_size], "FP32 sum", weights=EXPERTS, part="moe")
    does = "The same function for every token, without a weight."
    steps.add("shared expert", does, ["T", config.hidden_size], "BF16", weights=SHARED, part="moe")
