"""RMS normalisation.

    RMS(v; w) = w * v * (mean(v^2) + eps)^(-1/2)

Widened to FP32, divided, multiplied by the weight in FP32, stored once.  No bias, no mean.  spec: README.md section 4.
"""

from torch import Tensor

from flash41.kernels.reference.arithmetic import inverse_rms


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[..., d] normalised over the last dim; weight [d] BF16 or FP32; result in x's dtype."""
    inverse = inverse_rms(x, eps).float()
    return (x.float() * inverse).mul_(weight).to(x.dtype)  # the weight is widened by the product
