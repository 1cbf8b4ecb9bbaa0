"""llama.cpp: named tensors of the graph of `src/models/deepseek41.cpp`, as an evaluation callback sees them.

A tensor of dims (a, b, c) in ggml's order is an array [c, b, a] here, so the streams, mixes and heads lie as ours do.
A name that two tensors of a layer share is told apart by the order they are computed in.
"""

from flash41.tools.adapters.changes import COLUMN, ONE_HEAD, UNSORTED
from flash41.tools.adapters.places import edited, seen
from flash41.tools.adapters.record import Adapter

IDS = "L{layer}.router.ids"

HOOKS = (
    seen("embed", "tensor embd"),
    seen("L0.resid.in", "tensor hc_init"),
    seen("L{layer}.resid.in", "tensor l_last-{before}"),
    edited(
        "L{layer}.engram.rows",
        "engram_rows-{layer}",
        "src/models/deepseek41.cpp build_inp_engram",
        "`inp->rows`, which has no name; rows of one token stand together",
    ),
    seen("L{layer}.engram.gate", "tensor engram_gate-{layer}", COLUMN),
    seen("L{layer}.resid.after_engram", "tensor engram_out-{layer}"),
    seen("L{layer}.attn.pre", "tensor hc_pre-{layer} call 0"),
    seen("L{layer}.attn.post", "tensor hc_post-{layer} call 0"),
    seen("L{layer}.attn.comb", "tensor hc_comb-{layer} call 0"),
    seen("L{layer}.attn.in", "tensor attn_norm-{layer}"),
    seen("L{layer}.attn.q", "tensor q-{layer}"),
    seen("L{layer}.attn.window_row", "tensor kv-{layer}", ONE_HEAD),
    seen("L{layer}.attn.out", "tensor attn_out-{layer}"),
    seen("L{layer}.resid.mid", "tensor hc_attn_post-{layer}"),
    seen("L{layer}.ffn.pre", "tensor hc_pre-{layer} call 1"),
    seen("L{layer}.ffn.post", "tensor hc_post-{layer} call 1"),
    seen("L{layer}.ffn.comb", "tensor hc_comb-{layer} call 1"),
    seen("L{layer}.ffn.in", "tensor ffn_norm-{layer}"),
    seen("L{layer}.router.logits", "tensor ffn_moe_logits-{layer}"),
    seen(IDS, "tensor ffn_moe_topk-{layer}", UNSORTED),
    seen("L{layer}.router.weights", "tensor ffn_moe_weights_scaled-{layer}", COLUMN, order_of=IDS),
    seen("L{layer}.ffn.out", "tensor ffn_out-{layer}"),
    seen("final.resid", "tensor l_last-{last}"),
    seen("final.hidden", "tensor hc_out"),
    seen("final.norm", "tensor result_norm"),
)

NOTES = (
    "At this commit the loader refuses every model with compressed rows, the released one too: what can be compared is "
    "a model whose layers are all WINDOW, with Engram, mHC and experts.",
    "The names of mixes, attention and routing were read in deepseek4.cpp and llama-graph.cpp of other commits, one "
    "perhaps of a fork; check them first.",
    "Its attention is still that of V4, which normalises each query head behind wq_b; q, and all behind it, differ.",
    "kv is the row before it is stored, without the FP8 round trip; the cache rounds in its own type. --profile fp32 "
    "comes closest.",
    "Weights are what the GGUF file holds, activations are rounded as ggml's type of the weight asks for, and the head "
    "multiplies in the type of its tensor.",
    "An Engram dot product of exactly zero gates 0.5, where ours gates sigmoid(0.001).",
    "ffn_moe_weights_scaled exists where the routed scaling factor is not 1.",
    "final.hidden and final.norm hold the rows whose logits were asked for, so ask for all.",
)

LLAMA_CPP = Adapter(engine="llama.cpp", version="ggml-org/llama.cpp 16ffdb3", hooks=HOOKS, notes=NOTES)
