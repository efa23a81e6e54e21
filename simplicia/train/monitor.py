"""How a run is doing while it trains: health figures, warnings, and online probes.

Online probes are linear classifiers that learn during pre-training, on detached features. Their accuracy is
cheap to get; every result calls it online.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.data.datasets import ImageSet, part
from simplicia.data.inputs import eval_views
from simplicia.distributed import average, gather, rank, world_size
from simplicia.methods import Method, Output
from simplicia.neighbours import vote
from simplicia.sem import SimplicialEmbedding, entropy, simplicial

LEAST_SPREAD, LEAST_RANK = 0.05, 2  # of the features; below, they collapsed
ONE_HOT, UNIFORM = 0.005, 0.995  # shares of ln V; simplices whose entropy is outside have a problem


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
        decode_size: int,
        image_size: int,
        temperatures: tuple[float, ...] = (),
    ):
        if train.labels is None or test.labels is None:
            raise ValueError("online probes need labels")
        self.method, self.statistics, self.device = method, statistics, device
        self.decode_size, self.image_size = decode_size, image_size
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
        """The encoder's output for all images; each process computes its share."""
        share = -(-len(images) // world_size())
        own = torch.arange(rank() * share, (rank() + 1) * share) % len(images)
        how = self.decode_size, self.image_size, *self.statistics, self.device
        views = (eval_views(part(images, indices), *how) for indices in own.split(256))
        return gather(torch.cat([self.method.online.encoder(x) for x in views]).float())[: len(images)]


def _name(head: str) -> str:
    """The name of a head's accuracy in the log: "sem@0.1" is online_sem_accuracy@0.1."""
    layer, at, temperature = head.partition("@")
    return f"online_{layer}_accuracy{at}{temperature}"


@torch.no_grad()
def health(method: Method, output: Output) -> dict[str, float]:
    """Loss, spread of the features and entropy of the last batch. Waits for the device: call it rarely."""
    features = gather(output.features[0].float())
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
        figures["entropy"] = average(entropy(simplices, bottleneck.vertices).mean()).item()
    return figures


def effective_rank(features: Tensor) -> float:
    """The number of directions in use: exp of the entropy of the singular values (Roy & Vetterli 2007)."""
    centred = features - features.mean(0)
    if not centred.isfinite().all():
        return float("nan")
    values = torch.linalg.svdvals(centred)
    shares = values / values.sum().clamp_min(1e-12)
    return math.exp(-(shares * shares.clamp_min(1e-12).log()).sum().item())


def warnings(
    method: Method, figures: dict[str, float], step: int, total_steps: int, images: int
) -> dict[str, str]:
    """A sentence for each problem that the figures of a batch show, by kind; ``images`` is its size."""
    problems = {}
    if figures["feature_std"] < LEAST_SPREAD:
        problems["collapse"] = (
            f"collapse: different images have nearly equal features (spread {figures['feature_std']:.3f}); "
            "a lower learning rate or a longer warm-up usually helps"
        )
    elif figures["effective_rank"] < LEAST_RANK:
        problems["collapse"] = f"collapse: the features use {figures['effective_rank']:.1f} directions"
    bottleneck = method.online.bottleneck
    late = step > 0.2 * total_steps
    if isinstance(bottleneck, SimplicialEmbedding) and bottleneck.vertices > 1 and late:
        share = figures["entropy"] / math.log(bottleneck.vertices)
        if share > UNIFORM:
            problems["uniform"] = (
                f"simplices are uniform (entropy {share:.3f} of ln V): the temperature may be too high"
            )
        elif share < ONE_HOT:
            problems["one-hot"] = (
                f"simplices are one-hot (entropy {share:.3f} of ln V): the temperature may be too low"
            )
    chance = method.chance(images)
    begun = step > 0.05 * total_steps  # the first losses are near chance anyway
    if begun and chance is not None and abs(figures["loss"] - chance) < 0.005 * chance:
        problems["chance"] = f"the loss stays at ln K = {chance:.3f}, as by guessing: it learns nothing"
    return problems
