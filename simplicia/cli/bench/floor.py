"""The least a training step could take: what must be computed and what must be moved, one after the other."""

from dataclasses import dataclass

from simplicia.analyze.model_cost import cost_of
from simplicia.train.recipe import Recipe

# FLOP/s of large bf16 products and bytes/s of large copies that a device really reaches
REACHED = {"NVIDIA H200": (790e12, 4.3e12)}
# passes over what a convolution or a linear layer gives: it is written, read for BatchNorm's sums, read and
# written where these are applied; backward, its gradient is written, read with it for the sums, read with it
# once more, and written
FORWARD, BACKWARD = 4, 6
HALF = 2  # bytes


@dataclass(frozen=True)
class Floor:
    """What a step must do at least; a multiply-add is two FLOPs."""

    flops: float
    activation_bytes: float
    weight_bytes: float

    def ms(self, device: str) -> float | None:
        """On a device that is known, by its name."""
        if device not in REACHED:
            return None
        speed, bandwidth = REACHED[device]
        return 1e3 * (self.flops / speed + (self.activation_bytes + self.weight_bytes) / bandwidth)


def floor(recipe: Recipe) -> Floor:
    """Both views of a batch forward and backward, and forward through the target; one pass over all weights.

    That pass reads weight, gradient, momentum and target, and writes all but the gradient, with 16-bit copies
    of weight and target; LARS reads the gradient once more, for its norm.
    """
    found, samples = cost_of(recipe), 2 * recipe.batch_size
    heads = [part for name, part in found.parts.items() if name not in ("encoder", "bottleneck", "projector")]
    followed = found.target_parameters > 0
    target_flops = (found.flops - sum(part.flops for part in heads)) * followed
    target_outputs = (found.activations - sum(part.activations for part in heads)) * followed
    passes = found.activations * (FORWARD + BACKWARD) + target_outputs * FORWARD
    momentum = HALF if recipe.optim.momentum_bits == "16" else 4
    each = 2 * 4 + 2 * momentum + HALF + HALF * (1 + (recipe.optim.name == "lars"))
    return Floor(
        2.0 * samples * (3 * found.flops + target_flops),
        float(HALF * samples * passes),
        float(each * found.parameters + (2 * 4 + HALF) * found.target_parameters),
    )
