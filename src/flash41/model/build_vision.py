"""Binds `vision.*`, `aligner.*` and the image vectors of a checkpoint to an image encoder.

They are a scope of their own: a model that is only given text never opens them.  spec: vision.md section 7.
"""

import torch

from flash41.checkpoint.loader import Checkpoint
from flash41.checkpoint.stored import Scope
from flash41.config.run import Profile
from flash41.kernels.interface import Kernels
from flash41.model.image_encoder import Aligner, ImageEncoder
from flash41.model.linear import RMSNorm
from flash41.model.vision import VISION_NORM_EPS, BiasedLinear, VisionBlock, VisionTower


def build_image_encoder(checkpoint: Checkpoint, profile: Profile, kernels: Kernels) -> ImageEncoder:
    """The image encoder of a checkpoint opened with its vision tensors.

    CheckpointError if they were not opened; afterwards every one of them has an owner, or this raises.
    """
    encoder = bind_image_encoder(checkpoint, kernels, torch.bfloat16 if profile.bf16_stores else torch.float32)
    checkpoint.assert_all_bound(Scope.VISION)
    return encoder


def bind_image_encoder(checkpoint: Checkpoint, kernels: Kernels, dtype: torch.dtype) -> ImageEncoder:
    """The image encoder over a checkpoint's tensors, computing in `dtype`."""
    return _VisionBuilder(checkpoint, kernels).encoder(dtype)


class _VisionBuilder:
    def __init__(self, checkpoint: Checkpoint, kernels: Kernels) -> None:
        self._checkpoint = checkpoint
        self._config = checkpoint.config.vision
        self._kernels = kernels

    def encoder(self, dtype: torch.dtype) -> ImageEncoder:
        config, tensor = self._config, self._checkpoint.tensor
        tower = VisionTower(
            self._linear("vision.patch_embed.proj"),
            [self._block(f"vision.blocks.{block_id}") for block_id in range(config.num_layers)],
            self._norm("vision.norm"),
            config.hidden_size // config.num_heads,
            config.rope_theta,
        )
        aligner = Aligner(self._linear("aligner.w1"), self._linear("aligner.w2"), config.downsample_ratio)
        start, newline, end = (tensor(f"image_{name}") for name in ("start", "newline", "end"))
        return ImageEncoder(tower, aligner, start=start, newline=newline, end=end, dtype=dtype)

    def _block(self, prefix: str) -> VisionBlock:
        return VisionBlock(
            norm1=self._norm(f"{prefix}.norm1"),
            wqkv=self._linear(f"{prefix}.attn.wqkv"),
            wo=self._linear(f"{prefix}.attn.wo"),
            norm2=self._norm(f"{prefix}.norm2"),
            w1=self._linear(f"{prefix}.mlp.w1", bias=False),
            w2=self._linear(f"{prefix}.mlp.w2", bias=False),
            num_heads=self._config.num_heads,
            kernels=self._kernels,
        )

    def _linear(self, prefix: str, bias: bool = True) -> BiasedLinear:
        tensor = self._checkpoint.tensor
        return BiasedLinear(tensor(f"{prefix}.weight"), tensor(f"{prefix}.bias") if bias else None, self._kernels)

    def _norm(self, prefix: str) -> RMSNorm:
        return RMSNorm(self._checkpoint.tensor(f"{prefix}.weight").float(), VISION_NORM_EPS, self._kernels)
