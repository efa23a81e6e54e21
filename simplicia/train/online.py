"""Online probes: linear classifiers that learn beside the method, on features no gradient flows back from.

Their accuracy is cheap and flattering or not as it may be; every result calls it online.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.data.datasets import ImageSet, part
from simplicia.data.image_ops import center_crop, eval_view
from simplicia.distributed import average
from simplicia.methods import Method, Output
from simplicia.neighbours import vote
from simplicia.sem import SimplicialEmbedding, simplicial


class OnlineProbe:
    """Linear classifiers on the encoder's output and, with SEM, on the simplices; and kNN on the former.

    The classifier on the simplices learns from what the method computed, at its own temperatures. For each
    of ``temperatures`` another one learns from the simplices at that temperature; their logits are computed
    once, from the method's features, with BatchNorm's running statistics as in testing.
    """

    def __init__(
        self,
        method: Method,
        train: ImageSet,
        test: ImageSet,
        statistics: tuple,
        device: torch.device,
        stored: int,
        size: int,
        temperatures: tuple[float, ...] = (),
    ):
        if train.labels is None or test.labels is None:
            raise ValueError("online probes need labels")
        self.method, self.statistics, self.device = method, statistics, device
        self.stored, self.size = stored, size  # of images, and of what is seen of them
        self.train, self.test = train, test
        self.labels = train.labels.to(device)
        self.classes = len(train.classes)
        encoder: Any = method.online.encoder
        widths = {"encoder": int(encoder.out_features)}
        self.temperatures: dict[str, float] = {}
        if isinstance(method.online.bottleneck, SimplicialEmbedding):
            self.temperatures = {f"sem@{tau:g}": tau for tau in temperatures}
            simplices = method.online.bottleneck.out_features
            widths |= dict.fromkeys(["sem", *self.temperatures], simplices)
        self.heads = {k: nn.Linear(w, self.classes).to(device) for k, w in widths.items()}
        self.parameters = {f"{k}.{n}": p for k, h in self.heads.items() for n, p in h.named_parameters()}
        self.velocity = {name: torch.zeros_like(p) for name, p in self.parameters.items()}

    def learn(self, output: Output, indices: Tensor, lr: float = 0.1) -> None:
        """A step of SGD with momentum 0.9 and no weight decay, on both views. Never waits for the device."""
        features = torch.cat(output.features).float()
        inputs = {
            "encoder": features,
            "sem": torch.cat(output.embeddings).float() + self.method.online.offset,
        }
        inputs |= self._at_temperatures(features)
        labels = self.labels[indices].repeat(len(output.features))
        with torch.enable_grad():
            losses = [F.cross_entropy(head(inputs[k]), labels) for k, head in self.heads.items()]
        grads = torch.autograd.grad(torch.stack(losses).sum(), list(self.parameters.values()))
        with torch.no_grad():
            for (name, p), grad in zip(self.parameters.items(), grads, strict=True):
                p.sub_(lr * self.velocity[name].mul_(0.9).add_(average(grad)))

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Test accuracies in percent, all named online; ``@`` precedes a temperature."""
        network = self.method.online
        was_training = network.training
        network.eval()
        features = {"train": self._features(self.train), "test": self._features(self.test)}
        labels = self.test.labels.to(self.device)  # type: ignore[union-attr]
        correct = {k: torch.zeros((), device=self.device) for k in self.heads}
        for h, y in zip(features["test"].split(256), labels.split(256), strict=True):
            inputs = {"encoder": h, "sem": network.bottleneck(h), **self._at_temperatures(h)}
            for k, head in self.heads.items():
                correct[k] += (head(inputs[k]).argmax(1) == y).sum()
        network.train(was_training)
        guesses = vote(features["train"], self.labels, features["test"], self.classes).argmax(1)
        correct["knn"] = (guesses == labels).sum()
        return {_name(k): 100 * c.item() / len(labels) for k, c in correct.items()}

    def tensors(self) -> dict[str, Tensor]:
        weights = {f"online.{k}": p.detach() for k, p in self.parameters.items()}
        return weights | {f"online_velocity.{k}": v for k, v in self.velocity.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on from a checkpoint; a probe that it does not have starts afresh."""
        for key, value in self.tensors().items():
            if key in tensors:
                value.copy_(tensors[key])

    @torch.no_grad()
    def _at_temperatures(self, features: Tensor) -> dict[str, Tensor]:
        if not self.temperatures:
            return {}
        bottleneck: Any = self.method.online.bottleneck
        was_training = bottleneck.training
        logits = bottleneck.eval().logits(features).float()
        bottleneck.train(was_training)
        return {k: simplicial(logits, bottleneck.vertices, tau) for k, tau in self.temperatures.items()}

    def _features(self, images: ImageSet) -> Tensor:
        parts = []
        for indices in torch.arange(len(images)).split(256):
            stored = center_crop(part(images, indices).center_cropped().images.to(self.device), self.stored)
            parts.append(self.method.online.encoder(eval_view(stored, self.size, *self.statistics)))
        return torch.cat(parts).float()


def _name(head: str) -> str:
    """The name of a head's accuracy in the log: "sem@0.1" is online_sem_accuracy@0.1."""
    layer, at, temperature = head.partition("@")
    return f"online_{layer}_accuracy{at}{temperature}"
