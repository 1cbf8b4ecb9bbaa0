"""transformers: `DeepseekV41ForCausalLM`, from the sources of its repository that no release holds yet.

One sequence in a batch; linear modules, one module for each mechanism, mixes and masks computed in methods.
"""

from flash41.tools.adapters.changes import BATCHED, FLATTENED, UNSORTED, then
from flash41.tools.adapters.places import edited, seen
from flash41.tools.adapters.record import Adapter

FILE = "src/transformers/models/deepseek_v41/modeling_deepseek_v41.py"
MIXES = f"{FILE} DeepseekV41DecoderLayer.hc_mixes"
ATTENTION = f"{FILE} DeepseekV41Attention.forward"
INDEXER = f"{FILE} DeepseekV41Indexer.forward"
LAYER = "model.layers.{layer}"
IDS = "L{layer}.router.ids"

HOOKS = (
    seen("embed", "model.embed output", BATCHED),
    seen("L{layer}.resid.in", f"{LAYER} input 0", BATCHED),
    seen("L{layer}.engram.rows", f"{LAYER}.engram input 1", BATCHED),
    edited(
        "L{layer}.engram.gate",
        f"{LAYER}.engram.gate",
        f"{FILE} DeepseekV41Engram.forward",
        "`gate` behind the token mask",
        BATCHED,
    ),
    seen("L{layer}.resid.after_engram", f"{LAYER}.engram output", BATCHED),
    edited("L{layer}.attn.pre", f"{LAYER}.hc_attn.pre", MIXES, "`pre` of the layer's first call", BATCHED),
    edited("L{layer}.attn.post", f"{LAYER}.hc_attn.post", MIXES, "`post` of the layer's first call", BATCHED),
    edited("L{layer}.attn.comb", f"{LAYER}.hc_attn.comb", MIXES, "`comb` of the layer's first call", BATCHED),
    seen("L{layer}.attn.in", f"{LAYER}.attn_norm output", BATCHED),
    edited("L{layer}.attn.q", f"{LAYER}.attn.q", ATTENTION, "`q` behind the rotation, before the transpose", BATCHED),
    edited(
        "L{layer}.attn.window_row",
        f"{LAYER}.attn.kv",
        ATTENTION,
        "`kv` behind its FP8 round trip, before the cache",
        then(BATCHED, BATCHED),
    ),
    seen("L{layer}.attn.latent", f"{LAYER}.attn.compressor output 0", BATCHED),
    edited(
        "L{layer}.attn.main_row",
        f"{LAYER}.attn.rotated",
        ATTENTION,
        "`rotated` behind its FP4 round trip, before the head axis",
        BATCHED,
    ),
    edited("L{layer}.index.key", f"{LAYER}.attn.indexer.k", INDEXER, "`k` behind its FP4 round trip", BATCHED),
    edited("L{layer}.index.q", f"{LAYER}.attn.indexer.q", INDEXER, "`q` behind its FP4 round trip", BATCHED),
    edited(
        "L{layer}.index.weights",
        f"{LAYER}.attn.indexer.weights",
        INDEXER,
        "`weights` times `self.softmax_scale`, which they apply to the products instead",
        BATCHED,
    ),
    edited(
        "L{layer}.index.scores",
        f"{LAYER}.attn.indexer.scores",
        INDEXER,
        "`index_scores` behind the mask of what is not visible, before that of the candidates",
        BATCHED,
    ),
    seen("L{layer}.attn.out", f"{LAYER}.attn output 0", BATCHED),
    seen("L{layer}.resid.mid", f"{LAYER}.hc_input_norm input 0 call 1", then(FLATTENED, BATCHED)),
    edited("L{layer}.ffn.post", f"{LAYER}.hc_ffn.post", MIXES, "`post` of the layer's second call", BATCHED),
    edited("L{layer}.ffn.comb", f"{LAYER}.hc_ffn.comb", MIXES, "`comb` of the layer's second call", BATCHED),
    seen("L{layer}.ffn.pre", f"{LAYER} output 1", BATCHED),
    seen("L{layer}.ffn.in", f"{LAYER}.ffn_norm output", BATCHED),
    edited(
        "L{layer}.router.logits",
        f"{LAYER}.ffn.gate.logits",
        f"{FILE} DeepseekV41TopKRouter.forward",
        "`scores` before the scoring function",
    ),
    seen(IDS, f"{LAYER}.ffn.gate output 1", UNSORTED),
    seen("L{layer}.router.weights", f"{LAYER}.ffn.gate output 0", order_of=IDS),
    seen("L{layer}.ffn.out", f"{LAYER}.ffn output", BATCHED),
    seen("final.resid", "model.layers.{last} output 0", BATCHED),
    seen("final.pre", "model.layers.{last} output 1", BATCHED),
    seen("final.hidden", "model.norm input 0", BATCHED),
    seen("final.norm", "model.norm output", BATCHED),
)

NOTES = (
    "Release 5.24.0 knows deepseek_v4 only: mixes used by the sub-layer that computes them, no Engram, ratios 4 and "
    "128. It cannot run V4.1; this table is for the V4.1 sources, which hold neither pictures nor drafts.",
    "Window rows, compressed rows, index keys and index queries are rounded as in profile vendor, where their widths "
    "are multiples of the groups; otherwise not at all, as in profile fp32.",
    "A linear module multiplies in the dtype it was loaded in. Without a quantiser there is no rounding of "
    "activations: expect the distance of --profile fp32 from vendor.",
    "RMSNorm stores its quotient in the model's dtype before it multiplies the weight; profile vendor stores once.",
    "The head is a linear module in the model's dtype; profile vendor multiplies in FP32.",
    "torch.topk decides ties of experts, rows and candidate blocks, in no promised order.",
    "index.selected and index.candidates exist as masks only, so the table leaves them out.",
)

TRANSFORMERS = Adapter(
    engine="transformers",
    version="huggingface/transformers 0a2080b (unreleased; not in 5.24.0)",
    hooks=HOOKS,
    notes=NOTES,
)
