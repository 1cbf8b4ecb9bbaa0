"""One transformer block: Engram, attention and experts around the four residual streams.

    x   = Engram(x)                              where the layer has a table; needs the settled residual
    pre_a, post_a, comb_a = mixes(x)             before the sub-layer
    u   = sum_s pre[s] x[s]                      the INCOMING pre, predicted by the sub-layer before
    x   = post_a * Attn(norm(u)) + comb_a o x
    pre_f, post_f, comb_f = mixes(x);  u = sum_s pre_a[s] x[s];  x = post_f * MoE(norm(u)) + comb_f o x

and pre_f goes to the next block.  spec: mhc.md section 1.
"""

from torch import Tensor, nn

from flash41.kernels.interface import Kernels
from flash41.model.attention import Attention
from flash41.model.batch import Selections, Step
from flash41.model.engram_gate import EngramGate
from flash41.model.linear import RMSNorm
from flash41.model.mhc import HyperConnection
from flash41.model.moe import MoE


class Block(nn.Module):
    """`layers.L`, or a draft stage `mtp.s`; `name` begins the names of its trace points."""

    def __init__(
        self,
        layer_id: int,
        name: str,
        *,
        engram: EngramGate | None,
        hc_attn: HyperConnection,
        attn_norm: RMSNorm,
        attn: Attention,
        hc_ffn: HyperConnection,
        ffn_norm: RMSNorm,
        ffn: MoE,
        kernels: Kernels,
    ) -> None:
        super().__init__()
        self.engram = engram
        self.hc_attn, self.attn_norm, self.attn = hc_attn, attn_norm, attn
        self.hc_ffn, self.ffn_norm, self.ffn = hc_ffn, ffn_norm, ffn
        self._layer_id = layer_id
        self._name = name
        self._kernels = kernels

    def add_engram(self, x: Tensor, step: Step) -> Tensor:
        """The residual with this layer's n-gram rows added, or as it is."""
        step.probe(f"{self._name}.resid.in", x)
        if self.engram is None:
            return x
        x = self.engram(x, step, self._layer_id)
        step.probe(f"{self._name}.resid.after_engram", x)
        return x

    def forward(self, x: Tensor, pre_mix: Tensor, step: Step, selections: Selections) -> tuple[Tensor, Tensor]:
        """Streams [T, S, D] and the collapse weights [T, S] for whoever reads them next."""
        probe, name, kernels = step.probe, self._name, self._kernels
        pre_a, post_a, comb_a = self.hc_attn(x)
        _record_mixes(step, f"{name}.attn", pre_a, post_a, comb_a)
        u = self.attn_norm(kernels.mhc_collapse(x, pre_mix))
        probe(f"{name}.attn.in", u)
        y = self.attn(u, step, selections)
        probe(f"{name}.attn.out", y)
        x = kernels.mhc_apply(x, y, post_a, comb_a)
        probe(f"{name}.resid.mid", x)
        pre_f, post_f, comb_f = self.hc_ffn(x)
        _record_mixes(step, f"{name}.ffn", pre_f, post_f, comb_f)
        u = self.ffn_norm(kernels.mhc_collapse(x, pre_a))
        probe(f"{name}.ffn.in", u)
        y = self.ffn(u, step, name)
        probe(f"{name}.ffn.out", y)
        return kernels.mhc_apply(x, y, post_f, comb_f), pre_f


def _record_mixes(step: Step, name: str, pre: Tensor, post: Tensor, comb: Tensor) -> None:
    step.probe(f"{name}.pre", pre)
    step.probe(f"{name}.post", post)
    step.probe(f"{name}.comb", comb)
