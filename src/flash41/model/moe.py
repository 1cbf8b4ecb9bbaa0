"""Mixture of experts: router, routed experts, the shared expert, and their sum.

    y = sum over the token's experts, ascending id, of their stored outputs (FP32)  +  shared expert;  one store

spec: moe.md.
"""

import torch
from torch import Tensor, nn

from flash41.kernels.interface import ExpertWeights, Kernels
from flash41.model.batch import Step
from flash41.model.experts import Guess, RoutedExperts


class MoE(nn.Module):
    """The feed-forward sub-layer of one block."""

    def __init__(
        self,
        gate: Tensor,
        bias: Tensor,
        bias_vl: Tensor,
        experts: RoutedExperts,
        shared_experts: ExpertWeights,
        *,
        topk: int,
        route_scale: float,
        limit: float,
        quantize_input: bool,
        kernels: Kernels,
    ) -> None:
        super().__init__()
        self.gate = gate
        self.bias = bias
        self.bias_vl = bias_vl
        self.experts = experts
        self.shared_experts = shared_experts
        self._topk = topk
        self._route_scale = route_scale
        self._limit = limit
        self._quantize_input = quantize_input
        self._kernels = kernels

    def forward(self, x: Tensor, step: Step, prefix: str) -> Tensor:
        """[T, D] -> [T, D]; `prefix` names the trace points."""
        logits = self._kernels.linear(x, self.gate, torch.float32)
        mask = step.batch.image_mask
        bias = self.bias if mask is None else torch.where(mask.unsqueeze(1), self.bias_vl, self.bias)
        ids, weights = self._kernels.route(logits, bias, self._topk, self._route_scale)
        step.probe(f"{prefix}.router.logits", logits)
        step.probe(f"{prefix}.router.ids", ids)
        step.probe(f"{prefix}.router.weights", weights)
        self.experts.want(ids, x)
        routed, shared = self._kernels.experts(
            x, ids, weights, self.experts, self.shared_experts, self._limit, self._quantize_input
        )
        return (routed + shared.float()).to(x.dtype)

    def expect_for(self, following: "MoE") -> None:
        """Lets this layer guess the experts of the one behind it, where those are read from files."""
        if following.experts.managed is not None:
            self.experts.guess = Guess(
                gate=following.gate,
                bias=following.bias,
                topk=following._topk,
                experts=following.experts.managed,
                kernels=self._kernels,
            )
