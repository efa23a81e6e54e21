"""SEM, SEM without its softmax, and no bottleneck."""

from torch import Tensor, nn

from simplicia.bottlenecks.registry import register
from simplicia.sem import Embedder, SimplicialEmbedding, Temperature

register("sem", layers=("sem", "embedder", "codes"))(SimplicialEmbedding)
register("embed", layers=("embedder", "sem", "codes"))(Embedder)


@register("none", layers=())
class NoBottleneck(nn.Module):
    """The baseline: the projector sees the encoder's output."""

    penalty = 0.0
    blocks = 1

    def __init__(self, in_features: int):
        super().__init__()
        self.out_features = in_features

    def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        return h
