"""A trained linear probe that classifies any images; ``probe`` and ``transfer`` train one."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simplicia.evaluate.sgd import Probes, fast_products, rows
from simplicia.representation import represent
from simplicia.run import Run


@dataclass
class FittedProbe:
    """Linear classifiers on a layer of a frozen run, one per seed, and what a result says about them."""

    run: Run
    network: str
    layer: str
    temperature: float | None
    classifiers: Probes  # weight (1, features, seeds * classes), bias
    classes: int
    kind: str
    details: dict[str, Any]

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Scores (seeds, N, classes) of a batch of uint8 images."""
        net: Any = self.run.network(self.network)
        weight = self.classifiers.weight
        h = represent(net, net.encoder(self.run.view(images)).float(), self.layer, self.temperature)
        h = h.to(weight.device)
        x = rows(h, net.bottleneck.vertices) if self.layer == "codes" else h.to(weight.dtype)[None]
        with fast_products(weight.device):
            return self.classifiers.scores(x)[0].unflatten(-1, (-1, self.classes)).transpose(0, 1)

    def predict(self, images: Tensor, among: Tensor | None = None) -> Tensor:
        """Predict the classes (seeds, N) of images, ``among`` some of the classes (None: all)."""
        excluded = torch.full((self.classes,), among is not None, device=self.classifiers.weight.device)
        if among is not None:
            excluded[among.to(excluded.device)] = False
        batches = (self.scores(batch).masked_fill(excluded, -torch.inf) for batch in images.split(256))
        return torch.cat([scores.argmax(-1) for scores in batches], 1)

    def correct(self, images: Tensor, labels: Tensor, among: Tensor | None = None) -> list[int]:
        """How many images each classifier gets right."""
        predicted = self.predict(images, among)
        return (predicted == labels.to(predicted.device)).sum(1).tolist()
