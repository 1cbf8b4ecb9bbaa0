"""The kernels of `flash41.kernels.interface`, differentiable, in FP32.

What is rounded and where is decided by the same modules and profiles as in the engine.  Where a profile stores results
as BF16, they are rounded to BF16 and kept in FP32, straight through, so that gradients stay FP32.  Discrete choices are
the reference's own functions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from flash41.kernels.interface import ExpertBank, ExpertWeights
from flash41.kernels.reference.engram_rows import engram_rows
from flash41.kernels.reference.index import candidate_blocks, index_scores_bf16_chain, inside_blocks, select_rows
from flash41.kernels.reference.router import WEIGHT_FLOOR, route
from flash41.numerics.scaled import Quantized, quantize_fp4_16, quantize_fp4_32, quantize_fp8_32
from flash41.numerics.stored_rows import AttendedRows, Keys, RowStack, as_keys
from training.model.dense import dense_attention
from training.model.mixing import signed_root, sinkhorn
from training.model.sparse import sparse_attention
from training.model.straight import bf16, fp4_16, fp4_32, fp8_32
from training.model.streams import apply, collapse
from training.model.tape import Layout, Tape


class TrainingKernels:
    """One forward's kernels: `tape` takes the notes of that forward, `stores_bf16` rounds what it stores."""

    name = "training"
    reads_bands = False

    def __init__(self, tape: Tape, stores_bf16: bool) -> None:
        self._tape = tape
        self._stores_bf16 = stores_bf16

    def stored(self, x: Tensor) -> Tensor:
        """X as a later operation reads it."""
        return bf16(x) if self._stores_bf16 else x

    def scaled_linear(self, x: Tensor, weight: Quantized) -> Tensor:
        """Input rounded FP8/32."""
        return self.stored(functional.linear(fp8_32(x), weight.dequantize()))

    def scaled_linears(self, x: Tensor, weights: Sequence[Quantized]) -> list[Tensor]:
        """The input is rounded once."""
        rounded = fp8_32(x)
        return [self.stored(functional.linear(rounded, weight.dequantize())) for weight in weights]

    def dequantized_linear(self, x: Tensor, weight: Quantized) -> Tensor:
        """Input as it is."""
        return self.stored(functional.linear(x, weight.dequantize()))

    def linear(self, x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
        """Unscaled weight; who stores the result is the caller's business."""
        return functional.linear(x.float(), weight.float()).to(out_dtype)

    def grouped_linear(self, x: Tensor, weights: Sequence[Quantized]) -> Tensor:
        """A matrix per group."""
        stacked = torch.stack([weight.dequantize() for weight in weights])
        return self.stored(torch.bmm(x.transpose(0, 1), stacked.mT).transpose(0, 1))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the root of the mean square."""
        return self.stored(functional.rms_norm(x, (x.shape[-1],), weight, eps))

    quantize_fp8_32 = staticmethod(quantize_fp8_32)
    quantize_fp4_32 = staticmethod(quantize_fp4_32)
    quantize_fp4_16 = staticmethod(quantize_fp4_16)

    def fake_fp8_32(self, x: Tensor) -> Tensor:
        """Straight through."""
        return fp8_32(x)

    def fake_fp4_32(self, x: Tensor) -> Tensor:
        """Straight through."""
        return fp4_32(x)

    def fake_fp4_16(self, x: Tensor) -> Tensor:
        """Straight through."""
        return fp4_16(x)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
        """Interleaved pairs of the last channels."""
        width = 2 * cos.shape[-1]
        shape = (x.shape[0], *([1] * (x.dim() - 2)), cos.shape[-1])
        cos, sin = cos.view(shape), (-sin if inverse else sin).view(shape)
        a, b = x[..., -width::2], x[..., 1 - width :: 2]
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
        return torch.cat((x[..., :-width], self.stored(turned)), -1)

    def mhc_mixes(
        self, x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, iterations: int, hc_eps: float, norm_eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """FP32, Sinkhorn unrolled."""
        streams, flat = x.shape[1], x.flatten(1)
        mixed = functional.linear(flat, fn) * (flat.square().mean(-1, keepdim=True) + norm_eps).rsqrt()
        pre = (mixed[:, :streams] * scale[0] + base[:streams]).sigmoid() + hc_eps
        post = 2.0 * (mixed[:, streams : 2 * streams] * scale[1] + base[streams : 2 * streams]).sigmoid()
        comb = mixed[:, 2 * streams :] * scale[2] + base[2 * streams :]
        return pre, post, sinkhorn(comb.view(-1, streams, streams), iterations, hc_eps)

    def mhc_collapse(self, x: Tensor, pre: Tensor) -> Tensor:
        """One row per token."""
        return self.stored(collapse(x, pre))

    def mhc_apply(self, x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """New streams."""
        return self.stored(apply(x, self.stored(y), post, comb))

    def sparse_attention(
        self, q: Tensor, rows: AttendedRows, index: Tensor, counts: Tensor, sink: Tensor, scale: float
    ) -> Tensor:
        """Gradient into the listed rows; the masses go to the tape."""
        if isinstance(rows, RowStack):
            rows, index = rows.gathered(index, counts)
        if self._tape.layout is not None:
            return self.stored(self._dense_attention(q, rows, self._tape.layout, sink, scale))
        blocked = self._tape.blocked
        if blocked is not None:  # rows of the forward themselves are never hidden
            blocked = functional.pad(blocked, (len(rows) - len(blocked), 0))
        outputs, masses = sparse_attention(q, rows, index, counts, sink, scale, self._stores_bf16, blocked)
        self._tape.attended(masses, counts)
        return self.stored(outputs)

    def _dense_attention(self, q: Tensor, rows: Tensor, layout: Layout, sink: Tensor, scale: float) -> Tensor:
        """Every visible row of window and plane, which follow each other in `rows`."""
        count, length = layout.num_sequences, layout.length
        keys = rows[: count * length].unflatten(0, (count, length))
        plane = rows[count * length :].unflatten(0, (count, -1)) if len(rows) > count * length else None
        ratio = 0 if plane is None else length // plane.shape[1]
        keys = keys if plane is None else torch.cat((keys, plane), 1)
        bias = self._tape.bias(layout, ratio).unsqueeze(0)
        if self._tape.blocked is not None:
            blocked = functional.pad(self._tape.blocked.view(count, 1, -1), (length, 0))
            bias = bias.masked_fill(blocked, -torch.inf)
        outputs, masses = dense_attention(q.unflatten(0, (count, length)), keys, bias, sink, scale, self._stores_bf16)
        if plane is not None and self._tape.scoring:
            heads = masses.view(count * length, q.shape[1], -1)
            self._tape.attended_all(heads[..., length:].sum(1))
        return outputs.flatten(0, 1)

    def full_attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Every row to all rows."""
        q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        return self.stored(functional.scaled_dot_product_attention(q, k, v, scale=scale).transpose(0, 1))

    def pool_group(self, values: Tensor, scores: Tensor) -> Tensor:
        """Softmax over the members of a group, channel by channel."""
        return self.stored((scores.softmax(1) * values).sum(1))

    def index_scores(self, q: Tensor, keys: Keys, weights: Tensor) -> Tensor:
        """Per-head ReLU before the head weight."""
        num_requests, length, num_heads, width = q.shape
        dots = torch.bmm(q.reshape(num_requests, length * num_heads, width), as_keys(keys).mT).relu()
        return torch.matmul(weights.unsqueeze(2), dots.view(num_requests, length, num_heads, -1)).squeeze(2)

    index_scores_bf16_chain = staticmethod(index_scores_bf16_chain)

    def select_rows(self, scores: Tensor, allowed: Tensor, topk: int) -> Tensor:
        """The reference's choice; scores and choice go to the tape."""
        if self._tape.layout is None:
            chosen = select_rows(scores.detach(), allowed, topk)
        else:  # every visible row, and they come first
            chosen = torch.where(allowed, torch.arange(scores.shape[1]), -1)
            chosen = functional.pad(chosen, (0, topk - scores.shape[1]), value=-1)
        return self._tape.selected(scores, allowed, chosen)

    def candidate_blocks(self, scores: Tensor, visible: Tensor, num_blocks: int, block_size: int) -> Tensor:
        """The reference's choice."""
        if self._tape.layout is not None:
            found = torch.arange(-(-scores.shape[1] // block_size))
            return torch.where(found * block_size < visible.unsqueeze(1), found, -1)
        return candidate_blocks(scores.detach(), visible, num_blocks, block_size)

    def inside_blocks(self, candidates: Tensor, num_rows: int, block_size: int) -> Tensor:
        """The reference's rows, and all for queries that no block binds."""
        inside = inside_blocks(candidates, num_rows, block_size)
        return inside if self._tape.unbounded is None else inside | self._tape.unbounded.unsqueeze(1)

    engram_rows = staticmethod(engram_rows)

    def route(self, logits: Tensor, bias: Tensor, topk: int, route_scale: float) -> tuple[Tensor, Tensor]:
        """The reference's ids; gradient through the weights of the chosen experts, none to the bias."""
        if self._tape.misrouted is not None:  # the first row is that of BOS, so its bias is that of text
            bias = torch.where(self._tape.misrouted.unsqueeze(1), bias[0], bias)
        ids, _ = route(logits.detach(), bias.detach(), topk, route_scale)
        self._tape.routes.append(ids)
        chosen = functional.softplus(logits.gather(1, ids)).sqrt()
        return ids, chosen / (chosen.sum(-1, keepdim=True) + WEIGHT_FLOOR) * route_scale

    def experts(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        bank: ExpertBank,
        shared: ExpertWeights,
        limit: float,
        quantize_input: bool,
    ) -> tuple[Tensor, Tensor]:
        """Expert after expert over its visitors, then the shared one over all rows."""
        source = fp8_32(x) if quantize_input else x
        flat = ids.flatten()
        order = flat.argsort(stable=True)
        rows = order.div(ids.shape[1], rounding_mode="floor")
        visits, weight = source.index_select(0, rows), weights.flatten()[order].unsqueeze(1)
        lengths = torch.bincount(flat, minlength=int(flat.max()) + 1).tolist()
        outputs = [
            self._expert(part, bank(expert_id), limit, factor, quantize_input)
            for expert_id, (part, factor) in enumerate(zip(visits.split(lengths), weight.split(lengths), strict=True))
            if len(part)
        ]
        routed = torch.zeros_like(x).index_add(0, rows, torch.cat(outputs))
        return routed, self._expert(source, shared, limit, None, quantize_input)

    def engram_gate(self, x: Tensor, key: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> Tensor:
        """Sigmoid of the signed root of a normalised product."""
        dot = (x * (q_weight * k_weight) * key).sum(-1)
        statistics = (x.square().mean(-1) + eps).rsqrt() * (key.square().mean(-1) + eps).rsqrt()
        gate = signed_root(dot * statistics * x.shape[-1] ** -0.5).sigmoid()
        return gate if self._tape.tableless is None else gate.masked_fill(self._tape.tableless.unsqueeze(1), 0.0)

    def engram_apply(self, x: Tensor, gate: Tensor, value: Tensor) -> Tensor:
        """The gated value joins every stream."""
        return self.stored(x + gate.unsqueeze(-1) * value.unsqueeze(1))

    def _expert(self, x: Tensor, weights: ExpertWeights, limit: float, factor: Tensor | None, quantize: bool) -> Tensor:
        """Gated MLP of an input that is rounded already; gradients stop where a clamp is active."""
        gate = self.stored(functional.linear(x, weights.w1.dequantize())).clamp(max=limit)
        up = self.stored(functional.linear(x, weights.w3.dequantize())).clamp(-limit, limit)
        inner = functional.silu(gate) * up
        inner = self.stored(inner if factor is None else inner * factor)
        return self.stored(functional.linear(fp8_32(inner) if quantize else inner, weights.w2.dequantize()))
