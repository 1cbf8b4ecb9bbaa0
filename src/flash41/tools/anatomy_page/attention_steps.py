"""The steps inside attention, which is where the four modes differ.  spec: attention.md sections 3 to 11."""

from flash41.config.architecture import ModelConfig
from flash41.config.topology import LayerMode, LayerSpec
from flash41.tools.anatomy_page.steps import Steps


def add_attention(steps: Steps, config: ModelConfig, layer: LayerSpec) -> None:
    """Query and window row, then what the mode adds, then attention and output."""
    _add_query(steps, config, layer)
    if layer.writes_plane:
        _add_plane(steps, config, layer)
    if layer.scores:
        _add_scores(steps, config, layer)
    elif layer.mode is LayerMode.REUSE:
        does = "The rows its top-k owner chose for the same token in the same forward."
        steps.add("selection", does, ["T", config.indexer.topk], "int", part="index")
    _add_output(steps, config, layer)


def rotation(config: ModelConfig, layer: LayerSpec) -> str:
    """Which rotary table a layer uses."""
    rope = config.rope
    if layer.ratio == 0:
        return f"RoPE base {rope.theta:g}"
    return f"RoPE base {rope.compress_theta:g}, YaRN {rope.yarn_factor:g}"


def _add_query(steps: Steps, config: ModelConfig, layer: LayerSpec) -> None:
    attention = config.attention
    names = ["attn.wq_a.weight", "attn.q_norm.weight"]
    steps.add("qr", "Low-rank query and its norm.", ["T", attention.q_lora_rank], "BF16", weights=names, part="attn")
    does = f"{rotation(config, layer)}, on the last {config.rope.head_dim} channels of every head."
    out = ["T", attention.num_heads, attention.head_dim]
    steps.add("q", does, out, "BF16", weights=["attn.wq_b.weight"], part="attn")
    kept = "rows of a block leave nothing behind" if layer.is_draft else "it enters the layer's own window"
    does = f"Norm, RoPE, FP8/32 round trip. K and V are this one row; {kept}."
    names = ["attn.wkv.weight", "attn.kv_norm.weight"]
    steps.add("window row", does, ["T", attention.head_dim], "BF16", weights=names, part="window")


def _add_plane(steps: Steps, config: ModelConfig, layer: LayerSpec) -> None:
    ratio, channels = layer.ratio, config.attention.head_dim
    rows = "T" if ratio == 1 else f"T/{ratio}"
    pooled = "One row per token: no gate." if ratio == 1 else f"Softmax pool of {ratio} tokens per channel, in FP32."
    names = [f"attn.compressor.{name}.weight" for name in ("wkv", "wgate", "norm")]
    steps.add("compressor", f"{pooled} Then a norm.", [rows, channels], "BF16", weights=names, part="plane")
    names = ["attn.indexer.wk.weight", "attn.indexer.k_norm.weight"]
    does = "From the latent before it is rotated; norm, RoPE, FP4/32. Written to the index plane."
    steps.add("index key", does, [rows, config.indexer.head_dim], "BF16", weights=names, part="plane")
    first = "" if ratio == 1 else " at the group's first position"
    does = f"RoPE{first}, FP4/16 round trip. Written to the main plane."
    steps.add("main row", does, [rows, channels], "BF16", part="plane")


def _add_scores(steps: Steps, config: ModelConfig, layer: LayerSpec) -> None:
    indexer = config.indexer
    names = ["attn.indexer.wq_b.weight", "attn.indexer.weights_proj.weight"]
    does = "Index query from qr (RoPE, FP4/32), and a weight per head."
    out = ["T", indexer.num_heads, indexer.head_dim]
    steps.add("index q, w", does, out, "BF16", weights=names, part="index")
    does = "I = sum over heads of w * relu(q . k), in FP32, for every visible row."
    width: int | str = "n"
    if layer.bounded_by_candidates:
        does = "I = sum over heads of w * relu(q . k), in FP32, inside the candidate blocks only."
        width = f"n, at most {indexer.candidate_blocks * indexer.candidate_block_size}"
    steps.add("index scores", does, ["T", width], "FP32", part="index")
    if layer.produces_candidates:
        size = indexer.candidate_block_size
        does = f"The best {indexer.candidate_blocks} blocks of {size} rows, the newest always among them."
        steps.add("candidate blocks", does, ["T", indexer.candidate_blocks], "int", part="index")
    does = f"The {indexer.topk} best rows, ascending; ties go to the smaller position."
    steps.add("selection", does, ["T", indexer.topk], "int", part="index")


def _add_output(steps: Steps, config: ModelConfig, layer: LayerSpec) -> None:
    attention = config.attention
    most = attention.window + (config.indexer.topk if layer.ratio else 0)
    kinds = "window and selected rows" if layer.ratio else "window rows"
    if layer.is_draft:
        most = attention.window + config.dspark.block_size
        kinds = "context rows and all rows of the block"
    does = f"One softmax over at most {most} {kinds}; the sink enters the denominator only."
    out = ["T", attention.num_heads, attention.head_dim]
    steps.add("attention", does, out, "BF16", weights=["attn.attn_sink"], part="attn")
    width = attention.o_groups * attention.o_lora_rank
    does = f"RoPE back, then {attention.o_groups} groups of heads, each with its own matrix."
    steps.add("wo_a", does, ["T", width], "BF16", weights=["attn.wo_a.weight"], part="attn")
    steps.add(
        "wo_b",
        "Back to the width of a stream.",
        ["T", config.hidden_size],
        "BF16",
        weights=["attn.wo_b.weight"],
        part="attn",
    )
