"""SGLang: `sglang.srt.models.deepseek_v4` running `deepseek_v41` on CUDA, eager and on one rank.

Residual and mixes travel beside the layers in a state of the batch, so most of the stream is seen only in the two
functions that read and write it.
"""

from flash41.tools.adapters.changes import UNSORTED
from flash41.tools.adapters.places import edited, seen
from flash41.tools.adapters.record import Adapter

MODEL = "sglang/srt/models/deepseek_v4.py"
READ = "sglang/srt/models/deepseek_v4_boundary.py HcReadCall.read"
POST = "sglang/srt/models/deepseek_v4_boundary.py HcUpdate.post"
MIXES = "sglang/srt/models/deepseek_v4_mhc.py _compute_triplet"
SPARSE = "sglang/srt/layers/attention/dsv4/dsv41_sparse.py"
MOE = "sglang/srt/models/deepseek_v2.py DeepseekV2MoE.forward_normal"
DRAFTER = "sglang/srt/models/deepseek_v4_dspark.py DeepseekV4ForCausalLMDSpark"
LAYER = "model.layers.{layer}"
STAGE = "draft.stages.{stage}"
IDS = "L{layer}.router.ids"

HOOKS = (
    seen("embed", "model.embed_tokens output"),
    edited(
        "L{layer}.resid.in",
        f"{LAYER}.streams",
        READ,
        "`streams` where self.attention; of a layer with an Engram, the first argument of `engram` instead",
    ),
    seen("L{layer}.engram.rows", f"{LAYER}.engram input 1"),
    seen("L{layer}.resid.after_engram", f"{LAYER}.engram output"),
    edited("L{layer}.attn.pre", f"{LAYER}.attn_hc.pre", MIXES, "the first of what it returns, for `attn_hc`"),
    edited("L{layer}.attn.post", f"{LAYER}.attn_hc.post", MIXES, "the second of what it returns, for `attn_hc`"),
    edited("L{layer}.attn.comb", f"{LAYER}.attn_hc.comb", MIXES, "the third of what it returns, for `attn_hc`"),
    seen("L{layer}.attn.in", f"{LAYER}.self_attn input x"),
    edited(
        "L{layer}.attn.q",
        f"{LAYER}.self_attn.q",
        f"{MODEL} MQALayer._compute_q_b",
        "the first n_local_heads heads of what it returns (not with mega attention, whose kernel rotates)",
    ),
    edited(
        "L{layer}.attn.latent",
        f"{LAYER}.self_attn.compressor.latent",
        f"{SPARSE} DeepseekV41Compressor.finish",
        "what it returns: the last row of every compress_ratio rows (not where compression is fused, SM100)",
    ),
    edited(
        "L{layer}.index.key",
        f"{LAYER}.self_attn.indexer.keys",
        f"{SPARSE} DeepseekV41Indexer.index_keys",
        "what it returns: the last row of every compress_ratio rows (not where compression is fused, SM100)",
    ),
    edited(
        "L{layer}.index.q", f"{LAYER}.self_attn.indexer.q", f"{SPARSE} DeepseekV41Indexer.queries", "what it returns"
    ),
    edited(
        "L{layer}.index.weights",
        f"{LAYER}.self_attn.indexer.weights",
        f"{SPARSE} DeepseekV41Indexer.head_weights",
        "what it returns",
    ),
    seen("L{layer}.attn.out", f"{LAYER}.self_attn output"),
    edited("L{layer}.resid.mid", f"{LAYER}.mid_streams", READ, "`streams` where not self.attention"),
    edited("L{layer}.ffn.pre", f"{LAYER}.ffn_hc.pre", MIXES, "the first of what it returns, for `ffn_hc`"),
    edited("L{layer}.ffn.post", f"{LAYER}.ffn_hc.post", MIXES, "the second of what it returns, for `ffn_hc`"),
    edited("L{layer}.ffn.comb", f"{LAYER}.ffn_hc.comb", MIXES, "the third of what it returns, for `ffn_hc`"),
    seen("L{layer}.ffn.in", f"{LAYER}.mlp input 0"),
    seen("L{layer}.router.logits", f"{LAYER}.mlp.gate output"),
    edited(IDS, f"{LAYER}.mlp.topk_ids", MOE, "`topk_output.topk_ids`, where its format is standard", UNSORTED),
    edited(
        "L{layer}.router.weights",
        f"{LAYER}.mlp.topk_weights",
        MOE,
        "`topk_output.topk_weights`, times `self.routed_scaling_factor` unless "
        "`self.routed_scaling_factor_fused_in_topk`",
        order_of=IDS,
    ),
    edited(
        "L{layer}.ffn.out",
        f"{LAYER}.mlp.summed",
        POST,
        "`output` where not self.attention and it is a tensor: routed and shared experts together",
    ),
    edited(
        "final.resid",
        "model.streams",
        f"{MODEL} DeepseekV4Model._forward_impl",
        "`hidden_states` behind the layers, before mhc_combine",
    ),
    edited("final.pre", "model.last_pre", f"{MODEL} DeepseekV4Model._forward_impl", "`last_pre`"),
    seen("final.hidden", "model.norm input 0"),
    seen("final.norm", "model.norm output"),
    seen("vision.block{block}", "vision.blocks.{block} output"),
    seen("vision.norm", "vision.norm output"),
    seen("vision.aligner", "aligner output"),
    seen("dspark.taps", "draft.stages.0.main_proj input 0"),
    seen("dspark.main_x", "draft.stages.0.main_norm output"),
    seen("mtp{stage}.attn.in", f"{STAGE}.self_attn input 1"),
    seen("mtp{stage}.router.logits", f"{STAGE}.mlp.gate output"),
    edited("draft.hidden", "draft.hidden", f"{DRAFTER}._forward_impl", "`x` behind mhc_combine"),
    edited("draft.base_logits", "draft.base_logits", f"{DRAFTER}.compute_base_logits", "the first of what it returns"),
)

NOTES = (
    "Index keys and queries are rounded to FP4 and wo_a is dequantised to BF16, as in profile vendor; their head "
    "weights are stored in BF16 once more.",
    "enable_decoder_swa_bounded_replay resolves to true where nothing forbids it: in a prefill, the layers from the "
    "last KV owner on see the last window of rows only. Set it to false to compare rows of the decoder.",
    "The head multiplies in the model's dtype unless enable_fp32_lm_head is set; profile vendor multiplies in FP32.",
    "On several ranks attention returns its partial sum, unadded: attn.out is no tensor then. Compare on one rank.",
    "The MegaMoE backend does not pass forward_normal, and its fused gate calls neither `gate` nor `topk`.",
    "The model module itself is entered through its `forward`, past its hooks; so no place names it.",
    "Not shown: engram.gate, window_row, main_row, index.scores, index.candidates and index.selected are computed "
    "inside kernels, packed into pages or given as addresses of pages.",
)

SGLANG = Adapter(engine="sglang", version="0.5.23", hooks=HOOKS, notes=NOTES)
