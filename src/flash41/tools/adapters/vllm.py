"""vLLM: `vllm.models.deepseek_v41` on NVIDIA GPUs, eager and on one rank.

A layer returns the output of its experts unmerged beside the residual it belongs to, so the end of a block exists only
inside the next one; queries, cache rows and scores never leave fused kernels.
"""

from flash41.tools.adapters.changes import COLUMN, SELECTION, UNSORTED
from flash41.tools.adapters.places import edited, seen
from flash41.tools.adapters.record import Adapter

MODEL = "vllm/models/deepseek_v41/nvidia/model.py"
FORWARD = f"{MODEL} DeepseekV4DecoderLayer.forward"
ATTENTION = "vllm/models/deepseek_v41/attention.py"
ROUTER = "vllm/model_executor/layers/fused_moe/router/fused_moe_router.py FusedMoERouter.select_experts"
DRAFTER = "vllm/models/deepseek_v41/nvidia/dspark.py DSparkDeepseekV4ForCausalLM"
LAYER = "language_model.model.layers.{layer}"
STAGE = "draft.model.layers.{stage}"
IDS = "L{layer}.router.ids"
FIRST_MIX = "of the mHC call before attention"

HOOKS = (
    seen("embed", "language_model.model.embed_tokens output"),
    edited(
        "L{layer}.resid.in",
        f"{LAYER}.residual",
        FORWARD,
        f"`residual` {FIRST_MIX}; in the branch with an Engram `previous_post`",
    ),
    seen("L{layer}.engram.rows", f"{LAYER}.engram input 1"),
    seen("L{layer}.resid.after_engram", f"{LAYER}.engram output"),
    edited("L{layer}.attn.pre", f"{LAYER}.attn_pre", FORWARD, f"`attn_pre` {FIRST_MIX}"),
    edited("L{layer}.attn.post", f"{LAYER}.attn_post_mix", FORWARD, f"`post_mix` {FIRST_MIX}", COLUMN),
    edited("L{layer}.attn.comb", f"{LAYER}.attn_res_mix", FORWARD, f"`res_mix` {FIRST_MIX}"),
    seen("L{layer}.attn.in", f"{LAYER}.attn input 1"),
    edited(
        "L{layer}.attn.q",
        f"{LAYER}.attn.q",
        f"{ATTENTION} DeepseekV4Attention._prepare_and_attn",
        "the first n_local_heads heads of `q` (not with mega attention, whose kernel rotates)",
    ),
    seen("L{layer}.attn.latent", f"{LAYER}.attn.compressor output each compress_ratio"),
    seen("L{layer}.index.weights", f"{LAYER}.attn.indexer output 2"),
    edited(
        "L{layer}.index.selected",
        f"{LAYER}.attn.topk_indices",
        f"{ATTENTION} DeepseekV4Attention._sparse_indexer_and_attn",
        "the first rows of `self.topk_indices_buffer`, one for each token, behind the indexer",
        SELECTION,
    ),
    seen("L{layer}.attn.out", f"{LAYER}.attn output"),
    seen("L{layer}.resid.mid", f"{LAYER} output 1"),
    seen("L{layer}.ffn.pre", f"{LAYER} output 4"),
    seen("L{layer}.ffn.post", f"{LAYER} output 2", COLUMN),
    seen("L{layer}.ffn.comb", f"{LAYER} output 3"),
    seen("L{layer}.ffn.in", f"{LAYER}.ffn input 0"),
    seen("L{layer}.router.logits", f"{LAYER}.ffn.gate output 0"),
    edited(IDS, f"{LAYER}.ffn.topk_ids", ROUTER, "`topk_ids`", UNSORTED),
    edited("L{layer}.router.weights", f"{LAYER}.ffn.topk_weights", ROUTER, "`topk_weights`", order_of=IDS),
    seen("L{layer}.ffn.out", f"{LAYER}.ffn output"),
    edited(
        "final.resid",
        "language_model.model.collapsed",
        f"{MODEL} DeepseekV4Model.forward",
        "`hidden_states` before hc_collapse_triton",
    ),
    seen("final.pre", "language_model.model.layers.{last} output 4"),
    seen("final.hidden", "language_model.model.norm input 0"),
    seen("final.norm", "language_model.model.norm output"),
    seen("vision.block{block}", "vision.blocks.{block} output"),
    seen("vision.norm", "vision.norm output"),
    seen("vision.aligner", "aligner output"),
    seen("dspark.taps", "draft.model.main_proj input 0"),
    seen("dspark.main_x", "draft.model.main_norm output"),
    seen("mtp{stage}.attn.in", f"{STAGE}.attn input 1"),
    seen("mtp{stage}.resid.mid", f"{STAGE} output 1"),
    seen("mtp{stage}.router.logits", f"{STAGE}.ffn.gate output 0"),
    seen("draft.hidden", "draft.model output"),
    edited("draft.base_logits", "draft.base_logits", f"{DRAFTER}.compute_logits", "what it returns"),
)

NOTES = (
    "Index keys and queries are FP8 unless attention_config.indexer_kv_dtype is mxfp4. With FP8, --profile atom comes "
    "closest, and index.weights carry the scale of each query; with mxfp4 they are those of profile vendor.",
    "wo_a takes FP8 activations behind the inverse rotation, as --profile atom.",
    "swa_bounded_replay is on by default: in a prefill, the layers from the last KV owner on see the last window of "
    "rows only. Switch it off to compare rows of the decoder.",
    "The FP8 record of cached rows is the vendor's window row on SM100 only; other GPUs keep 64 lanes in BF16 and "
    "scale 64 lanes together. Compressed rows are FP4 with --kv-cache-dtype nvfp4_ds_mla only, else that record.",
    "The head multiplies in BF16 unless head_dtype is overridden with float32; profile vendor multiplies in FP32.",
    "Candidate blocks: the newest is always kept, as in profile vendor; with indexer_sparse_logits rows are selected "
    "by BF16 scores.",
    "While no more rows are visible than index_topk, the indexer is skipped: index.weights are absent.",
    "Expert kernels that route by themselves (monolithic, MegaMoE) call neither the gate nor select_experts.",
    "Not shown: engram.gate, window_row, main_row, index.key, index.q, index.scores and index.candidates are computed "
    "inside kernels or packed into pages.",
)

VLLM = Adapter(engine="vllm", version="0.33.0", hooks=HOOKS, notes=NOTES)
