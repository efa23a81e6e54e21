"""Online probes: linear classifiers that learn beside the method, on features no gradient flows back from.

Their accuracy is cheap and flattering or not as it may be; every result calls it online.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.data.datasets import ImageSet
from simplicia.data.views import eval_view
from simplicia.distributed import average
from simplicia.methods import Method, Output
from simplicia.neighbours import vote
from simplicia.sem import SimplicialEmbedding


class OnlineProbe:
    """Linear classifiers on the encoder's output and, with SEM, on the simplices; and kNN on the former."""

    def __init__(
        self,
        method: Method,
        train: ImageSet,
        test: ImageSet,
        statistics: tuple,
        device: torch.device,
        size: int,
    ):
        if train.labels is None or test.labels is None:
            raise ValueError("online probes need labels")
        self.method, self.statistics, self.size, self.device = method, statistics, size, device
        self.train, self.test = train, test
        self.labels = train.labels.to(device)
        self.classes = len(train.classes)
        encoder: Any = method.online.encoder
        widths = {"encoder": int(encoder.out_features)}
        if isinstance(method.online.bottleneck, SimplicialEmbedding):
            widths["sem"] = method.online.bottleneck.out_features
        self.heads = nn.ModuleDict({k: nn.Linear(w, self.classes) for k, w in widths.items()}).to(device)
        self.velocity = {name: torch.zeros_like(p) for name, p in self.heads.named_parameters()}

    def learn(self, output: Output, indices: Tensor, lr: float = 0.1) -> None:
        """A step of SGD with momentum 0.9 and no weight decay, on both views."""
        inputs = {"encoder": output.features, "sem": output.embeddings}
        labels = self.labels[indices].repeat(2)
        with torch.enable_grad():
            losses = [F.cross_entropy(h(torch.cat(inputs[k]).float()), labels) for k, h in self.heads.items()]
        grads = torch.autograd.grad(torch.stack(losses).sum(), list(self.heads.parameters()))
        with torch.no_grad():
            for (name, p), grad in zip(self.heads.named_parameters(), grads, strict=True):
                p.sub_(lr * self.velocity[name].mul_(0.9).add_(average(grad)))

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Test accuracies in percent, all named online."""
        network = self.method.online
        was_training = network.training
        network.eval()
        features = {k: self._features(getattr(self, k).images) for k in ("train", "test")}
        labels = self.test.labels.to(self.device)  # type: ignore[union-attr]
        correct = dict.fromkeys(self.heads, 0)
        for h, y in zip(features["test"].split(256), labels.split(256), strict=True):
            inputs = {"encoder": h, "sem": network.bottleneck(h)}
            for k, head in self.heads.items():
                correct[k] += (head(inputs[k]).argmax(1) == y).sum().item()
        network.train(was_training)
        knn = (
            (vote(features["train"], self.labels, features["test"], self.classes).argmax(1) == labels)
            .float()
            .mean()
        )
        accuracies = {f"online_{k}_accuracy": 100 * c / len(labels) for k, c in correct.items()}
        return accuracies | {"online_knn_accuracy": 100 * knn.item()}

    def tensors(self) -> dict[str, Tensor]:
        weights = {f"online.{k}": v for k, v in self.heads.state_dict().items()}
        return weights | {f"online_velocity.{k}": v for k, v in self.velocity.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on from a checkpoint; one without online probes starts them afresh."""
        for key, value in self.tensors().items():
            if key in tensors:
                value.copy_(tensors[key])

    def _features(self, images: Tensor) -> Tensor:
        parts = [
            self.method.online.encoder(eval_view(part.to(self.device), self.size, *self.statistics))
            for part in images.split(256)
        ]
        return torch.cat(parts).float()
