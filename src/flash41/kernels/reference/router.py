"""The router: which experts a token visits and with what weight.

    s   = sqrt(softplus(logit))
    ids = the k largest of s + bias, ties to the lowest id, listed ascending
    w   = route_scale * s[ids] / (sum s[ids] + 1e-20)        from the un-biased s

spec: moe.md section 1.  FP32 in and out.
"""

import torch
from torch import Tensor

LINEAR_FROM = 50.0
"""From here on ln(1 + e^z) is z to the last bit of FP64."""
WEIGHT_FLOOR = 1e-20
"""Added to the sum of the chosen scores (a constant of its own, numerically equal to the norm's eps)."""


def router_scores(logits: Tensor) -> Tensor:
    """sqrt(ln(1 + e^z)), stable for every z: neither overflow for large z nor loss below -16.64."""
    return torch.nn.functional.softplus(logits.double(), threshold=LINEAR_FROM).sqrt_().float()


def route(logits: Tensor, bias: Tensor, topk: int, route_scale: float) -> tuple[Tensor, Tensor]:
    """Ids int64 [T, topk] ascending and weights FP32 [T, topk]; bias FP32 [experts] or, per token, [T, experts]."""
    scores = router_scores(logits)
    order = (scores + bias).sort(dim=-1, descending=True, stable=True).indices
    ids = order[:, :topk].sort(-1).values
    chosen = scores.gather(1, ids)
    total = chosen.sum(-1, keepdim=True, dtype=torch.float64).float() + WEIGHT_FLOOR
    return ids, torch.div(chosen, total) * route_scale
