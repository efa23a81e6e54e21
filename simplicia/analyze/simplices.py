"""Softmax over many small groups, for passes over whole data sets."""

from torch import Tensor

from simplicia.sem import simplicial


def simplices(logits: Tensor, vertices: int, temperature: float) -> Tensor:
    """What ``simplicial`` gives, float32; on a CPU several times faster for groups of a dozen entries."""
    if logits.device.type != "cpu" or temperature < 1e-4:
        return simplicial(logits, vertices, temperature)
    groups = logits.unflatten(-1, (-1, vertices))
    powers = ((groups - groups.amax(-1, keepdim=True)) * (1 / temperature)).exp_()
    return powers.div_(powers.sum(-1, keepdim=True)).flatten(-2)
