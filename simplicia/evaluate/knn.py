"""Weighted k-nearest neighbours: no training, no choice to make."""

import math
import time
from typing import Any

import torch
from torch import Tensor

from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate.features import check_classes, encoder_features
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
    """Accuracy of the k nearest training images' votes, by cosine; on codes by their overlap."""
    start = time.monotonic()
    check_classes(train, test)
    if k < 1:
        raise UserError(f"k is {k}; at least 1 neighbour must vote")
    if not 0 < vote_temperature < math.inf:
        raise UserError(f"vote_temperature is {vote_temperature}; it must be positive, and finite")
    k = min(k, len(train))  # of fewer images all vote
    layer = run.check_layer(layer, temperature)
    net: Any = run.network(network)
    bottleneck: Any = net.bottleneck
    on_codes = layer == "codes"
    small = torch.uint8 if on_codes and bottleneck.vertices <= 256 else torch.int32

    def compared(features: Tensor) -> Tensor:
        found = represent(net, features, layer, temperature)
        if not found.isfinite().all():
            raise UserError(f"layer {layer!r} of {run.path} has features that are not finite")
        return found.to(small) if on_codes else found

    bank, queries = (encoder_features(run, s.images, network) for s in (train, test))
    assert train.labels is not None and test.labels is not None
    classes = len(train.classes)
    similarity = overlap if on_codes else cosine
    scores = vote(bank, train.labels, queries, classes, k, vote_temperature, similarity, compared)
    truth = test.labels.to(scores.device)[:, None]
    first = int((scores.argmax(1, keepdim=True) == truth).sum())
    five = scores.topk(min(5, classes))
    voted = (five.indices == truth) & (five.values > 0)  # fewer than five classes may have a vote
    among = int(voted.sum()) if classes > 5 else None
    if layer == "sem":
        shown = bottleneck.temperature if temperature is None else temperature
    else:
        shown = 0.0 if on_codes else None
    return make_result(
        run,
        "weighted kNN",
        train,
        test,
        network=network,
        layer=layer,
        temperature=shown,
        k=k,
        vote_temperature=vote_temperature,
        similarity="overlap" if on_codes else "cosine",
        seconds=time.monotonic() - start,
        **percent(first, len(test), among),
    )
