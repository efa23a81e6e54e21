"""Training on cached features of a frozen encoder, in place of images."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from simplicia.data.augmentation import Triple
from simplicia.methods import Method, TargetMethod


@dataclass
class Frozen:
    """An encoder that does not learn, and its features of views of the training images."""

    encoder: nn.Module
    features: Tensor  # (images, views, features)
    statistics: tuple[Triple, Triple]  # mean and std that the encoder's images are normalised with
    extraction: dict[str, Any]  # what computing the features took

    def attach(self, method: Method) -> None:
        """Make a method's networks take features in place of images."""
        networks = [method.online, *([method.target] if isinstance(method, TargetMethod) else [])]
        for network in networks:
            network.encoder = Features(self.features.shape[-1])


class Features(nn.Module):
    """Takes the place of the encoder: its input are features already."""

    def __init__(self, out_features: int):
        super().__init__()
        self.out_features = out_features

    def forward(self, x: Tensor) -> Tensor:
        return x


class FeatureViews:
    """Two different views of each image, of those whose features (N, views, features) are cached."""

    def __call__(self, features: Tensor, aspect_ratios: Tensor | None = None) -> list[Tensor]:
        chosen = torch.rand(features.shape[:2], device=features.device).argsort(1)[:, :2]
        pair = features.gather(1, chosen[..., None].expand(-1, -1, features.shape[-1]))
        return [view.float() for view in pair.unbind(1)]
