"""The router: which experts a token visits and with what weight.

    s   = sqrt(softplus(logit))
    ids = the k largest of s + bias, ties to the lowest id, listed ascending
    w   = route_scale * s[ids] / (sum s[ids] + 1e-20)        from the un-biased s

spec: moe.md section 1.  FP32 in and out.
"""

import torch
from torch import Tensor

WEIGHT_FLOOR = 1e-20
"""Added to the sum of the chosen scores (a constant of its own, numerically equal to the norm's eps)."""


def router_scores(logits: Tensor) -> Tensor:
    """sqrt(ln(1 + e^z)), stable for every z: neither overflow for large z nor loss below -16.64."""
    z = logits.double()
    return (z.clamp(min=0) + (-z.abs()).exp().log1p()).sqrt().float()


def route(logits: Tensor, bias: Tensor, topk: int, route_scale: float) -> tuple[Tensor, Tensor]:
    """Ids int64 [T, topk] ascending and weights FP32 [T, topk]; bias FP32 [experts] or, per token, [T, experts]."""
    scores = router_scores(logits)
    order = (scores + bias).sort(dim=-1, descending=True, stable=True).indices
    ids = order[:, :topk].sort(-1).values
    chosen = scores.gather(1, ids)
    total = chosen.double().sum(-1, keepdim=True).float() + WEIGHT_FLOOR
    return ids, torch.div(chosen, total) * route_scale
