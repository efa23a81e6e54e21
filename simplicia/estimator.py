"""A run as a step of a scikit-learn pipeline."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from simplicia.explain import Vote
from simplicia.representation import sparse_codes
from simplicia.run import Run, load


class RunTransformer(TransformerMixin, BaseEstimator):
    """Encode images with a run: ``make_pipeline(RunTransformer("runs/a"), LogisticRegression())``.

    ``run`` is a folder that ``pretrain`` wrote, or a loaded run; images and the other parameters are those of
    ``Run.encode``. Fitting loads the run and learns nothing. Codes are a sparse one-hot matrix with a column
    for each vertex of each simplex, other layers are arrays.

    >>> RunTransformer(run, layer="codes").fit_transform(images).shape
    (4, 104)
    """

    def __init__(
        self,
        run: str | Path | Run,
        layer: str | None = None,
        temperature: float | None = None,
        network: str = "online",
        batch_size: int = 256,
        device: str = "auto",
    ):
        self.run, self.layer, self.temperature = run, layer, temperature
        self.network, self.batch_size, self.device = network, batch_size, device

    def fit(self, images: Any = None, y: Any = None) -> "RunTransformer":
        """Load the run and check the layer; nothing is learned from the images.

        >>> RunTransformer(run).fit().layer_
        'sem'
        """
        self.run_ = self.run if isinstance(self.run, Run) else load(self.run, self.device)
        self.layer_ = self.run_.check_layer(self.layer, self.temperature)
        return self

    def transform(self, images: Iterable[Any]) -> Any:
        """(N, features): an array, or a sparse matrix of codes.

        >>> RunTransformer(run, "encoder").fit().transform(images).shape
        (4, 128)
        """
        check_is_fitted(self)
        encoded = self.run_.encode(images, self.layer_, self.temperature, self.network, self.batch_size)
        bottleneck: Any = self.run_.network(self.network).bottleneck
        return sparse_codes(encoded, bottleneck.vertices) if self.layer_ == "codes" else encoded.numpy()

    def explain(self, image: Any, count: int = 5, examples: int = 4, images: Any = None) -> list[Vote]:
        """The most certain simplices of an image, with example images: see ``Run.explain``.

        >>> votes = RunTransformer(run).fit().explain(images[0], images=images)
        >>> len(votes), len(votes[0].examples)
        (5, 4)
        """
        check_is_fitted(self)
        return self.run_.explain(image, count, examples, images, self.network)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names such as "simplex1_vertex1" for simplices and codes, or "encoder1" for other layers.

        >>> RunTransformer(run).fit().get_feature_names_out()[-1]
        'simplex7_vertex12'
        """
        check_is_fitted(self)
        net: Any = self.run_.network(self.network)
        if self.layer_ in ("sem", "codes"):
            pairs = itertools.product(range(net.bottleneck.simplices), range(net.bottleneck.vertices))
            names = [f"simplex{i}_vertex{j}" for i, j in pairs]
        else:
            layer = net.encoder if self.layer_ == "encoder" else net.bottleneck
            names = [f"{self.layer_}{i}" for i in range(layer.out_features)]
        return np.array(names, dtype=object)
