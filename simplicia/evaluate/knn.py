"""Weighted k-nearest neighbours: no training, nothing to choose."""

import math
import time
from typing import Any

from torch import Tensor

from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate.features import check_classes, encoder_features, sem_temperature, smallest_integer
from simplicia.evaluate.make_result import K, make_result
from simplicia.neighbours import cosine, overlap, vote
from simplicia.representation import represent
from simplicia.result import Result, percent
from simplicia.run import Run


def knn(
    run: Run,
    train: ImageSet,
    test: ImageSet,
    layer: str | None = None,
    temperature: float | None = None,
    k: int = K,
    vote_temperature: float = 0.07,
    network: str = "online",
) -> Result:
    """Test accuracy of the votes of the k nearest training images, by cosine; for codes by their overlap.

    >>> knn(run, train, test, "codes")["k"]
    20
    """
    start = time.monotonic()
    labels, test_labels = check_classes(train, test)
    if k < 1:
        raise UserError(f"k is {k}; it must be at least 1")
    if not 0 < vote_temperature < math.inf:
        raise UserError(f"vote_temperature is {vote_temperature}; it must be positive and finite")
    k, classes = min(k, len(train)), len(train.classes)
    layer = run.check_layer(layer, temperature)
    net: Any = run.network(network)
    similarity = overlap if layer == "codes" else cosine

    def represent_batch(features: Tensor) -> Tensor:
        x = represent(net, features.to(run.device).float(), layer, temperature)
        if not x.isfinite().all():
            raise UserError(f"layer {layer!r} of {run.path} has features that are not finite")
        return x.to(smallest_integer(net.bottleneck.vertices)) if layer == "codes" else x

    bank, queries = (encoder_features(run, images.images, network) for images in (train, test))
    scores = vote(bank, labels, queries, classes, k, vote_temperature, similarity, represent_batch)
    truth = test_labels.to(scores.device)[:, None]
    first = int((scores.argmax(1, keepdim=True) == truth).sum())
    top = scores.topk(min(5, classes))
    among_five = (top.indices == truth) & (top.values > 0)  # fewer than five classes may have votes
    return make_result(
        run,
        "weighted kNN",
        train,
        test,
        network=network,
        layer=layer,
        temperature=sem_temperature(run, layer, temperature, network),
        k=k,
        vote_temperature=vote_temperature,
        similarity=similarity.__name__,
        seconds=time.monotonic() - start,
        **percent(first, len(test), int(among_five.sum()) if classes > 5 else None),
    )
