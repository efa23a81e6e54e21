"""Weighted k-nearest neighbours: no training, no choice to make."""

import time
from typing import Any

from simplicia.data.datasets import ImageSet
from simplicia.evaluate.features import encoder_features, percent, result
from simplicia.neighbours import vote
from simplicia.run import Run, represent


def knn(
    run: Run,
    train: ImageSet,
    test: ImageSet,
    layer: str | None = None,
    temperature: float | None = None,
    k: int = 20,
    vote_temperature: float = 0.07,
    network: str = "online",
) -> dict[str, Any]:
    """Accuracy of the k nearest training images' votes, by cosine; on codes that is their overlap."""
    start = time.monotonic()
    layer = run.check_layer(layer)
    net = run.network(network)
    # one-hot vectors have as cosine the share of equal codes
    wanted, tau = ("sem", 0.0) if layer == "codes" else (layer, temperature)
    bank, queries = (
        represent(net, encoder_features(run, s.images, network), wanted, tau) for s in (train, test)
    )
    assert train.labels is not None and test.labels is not None
    scores = vote(bank, train.labels, queries, len(train.classes), k, vote_temperature)
    correct = int((scores.argmax(1).cpu() == test.labels).sum())
    shown = tau if tau is not None else run.recipe.sem.temperature if layer == "sem" else None
    return result(
        run,
        "weighted kNN",
        train,
        test,
        network=network,
        layer=layer,
        temperature=shown,
        k=k,
        vote_temperature=vote_temperature,
        **percent(correct, len(test)),
        seconds=time.monotonic() - start,
    )
