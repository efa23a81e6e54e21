"""The least a training step could take: its computing and its memory traffic, one after the other."""

from dataclasses import dataclass

from simplicia.analyze.model_cost import cost_of
from simplicia.train.recipe import Recipe

# FLOP/s of large bf16 products and bytes/s of large copies, as measured on the device
REACHED = {"NVIDIA H200": (790e12, 4.3e12)}
# passes over the output of a convolution or linear layer. Forward: write it, read it for the sums of
# BatchNorm, read and write it to apply them. Backward: write its gradient, read both for the sums, read both
# again, and write
FORWARD, BACKWARD = 4, 6
HALF = 2  # bytes


@dataclass(frozen=True)
class Floor:
    """The least work of a step; a multiply-add is two FLOPs."""

    flops: float
    activation_bytes: float
    weight_bytes: float

    def ms(self, device: str) -> float | None:
        """Milliseconds on a device; None if its speed is unknown."""
        if device not in REACHED:
            return None
        speed, bandwidth = REACHED[device]
        return 1e3 * (self.flops / speed + (self.activation_bytes + self.weight_bytes) / bandwidth)


def floor(recipe: Recipe) -> Floor:
    """Both views forward and backward, and forward through the target; one pass over all weights.

    The pass over the weights reads weight, gradient, momentum and target, and writes all but the gradient,
    with 16-bit copies of weight and target; LARS reads the gradient once more, for its norm.
    """
    cost, samples = cost_of(recipe), 2 * recipe.batch_size
    heads = [part for name, part in cost.parts.items() if name not in ("encoder", "bottleneck", "projector")]
    has_target = cost.target_parameters > 0
    target_flops = (cost.flops - sum(part.flops for part in heads)) * has_target
    target_outputs = (cost.activations - sum(part.activations for part in heads)) * has_target
    passes = cost.activations * (FORWARD + BACKWARD) + target_outputs * FORWARD
    momentum = HALF if recipe.optim.momentum_bits == "16" else 4
    per_weight = 2 * 4 + 2 * momentum + HALF + HALF * (1 + (recipe.optim.name == "lars"))
    return Floor(
        2.0 * samples * (3 * cost.flops + target_flops),
        float(HALF * samples * passes),
        float(per_weight * cost.parameters + (2 * 4 + HALF) * cost.target_parameters),
    )
