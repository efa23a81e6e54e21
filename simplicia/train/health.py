"""Is this run healthy? Numbers for the log, and words when something is wrong."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.methods import Method, Output
from simplicia.sem import SimplicialEmbedding, entropy


@torch.no_grad()
def measure(method: Method, output: Output) -> dict[str, float]:
    """Figures of the last batch. Waits for the device: call it now and then, not at every step."""
    features = output.features[0].float()
    figures = {
        "loss": output.loss.item(),
        # 1 for features spread evenly over the sphere, 0 when all images have the same feature
        "feature_std": F.normalize(features, dim=-1).std(0).mean().item() * math.sqrt(features.shape[1]),
        "effective_rank": effective_rank(features),
    }
    bottleneck = method.online.bottleneck
    if isinstance(bottleneck, SimplicialEmbedding):
        # in 16 bits, p - 1/V of a probability 0 may be slightly below -1/V
        simplices = (output.embeddings[0].float() + method.online.offset).clamp_min(0)
        figures["entropy"] = entropy(simplices, bottleneck.vertices).mean().item()
    return figures


def effective_rank(features: Tensor) -> float:
    """How many directions are used: exp of the entropy of the singular values (Roy & Vetterli 2007)."""
    centred = features - features.mean(0)
    if not centred.isfinite().all():
        return float("nan")
    values = torch.linalg.svdvals(centred)
    shares = values / values.sum().clamp_min(1e-12)
    return math.exp(-(shares * shares.clamp_min(1e-12).log()).sum().item())


def warnings(
    method: Method, figures: dict[str, float], step: int, total_steps: int, images: int
) -> dict[str, str]:
    """What is wrong with these figures of a batch of so many images: by kind, in words."""
    found = {}
    if figures["feature_std"] < 0.05:
        found["collapse"] = (
            f"collapse: different images have nearly equal features (spread {figures['feature_std']:.3f}); "
            "a lower learning rate or a longer warm-up usually helps"
        )
    elif figures["effective_rank"] < 2:
        found["collapse"] = f"collapse: the features use {figures['effective_rank']:.1f} directions"
    bottleneck = method.online.bottleneck
    late = step > 0.2 * total_steps
    if isinstance(bottleneck, SimplicialEmbedding) and bottleneck.vertices > 1 and late:
        share = figures["entropy"] / math.log(bottleneck.vertices)
        if share > 0.995:
            found["uniform"] = (
                f"simplices are uniform (entropy {share:.3f} of ln V): the temperature may be too high"
            )
        elif share < 0.005:
            found["one-hot"] = (
                f"simplices are one-hot (entropy {share:.3f} of ln V): the temperature may be too low"
            )
    chance = method.chance(images)
    begun = step > 0.05 * total_steps  # before that it may not have left it yet
    if begun and chance is not None and abs(figures["loss"] - chance) < 0.005 * chance:
        guessing = f"ln K = {chance:.3f}, what guessing gives"
        found["chance"] = f"the loss sits at {guessing}: nothing is being learned"
    return found
