"""A run as a step of a scikit-learn pipeline."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from simplicia.representation import sparse_codes
from simplicia.run import Run, load


class RunTransformer(TransformerMixin, BaseEstimator):
    """Images to what a run has learned: ``make_pipeline(RunTransformer("runs/a"), LogisticRegression())``.

    ``run`` is a folder that ``pretrain`` wrote, or what ``simplicia.load`` gave; the other parameters are
    those of ``Run.encode``, as are the images. Fitting loads the run and learns nothing. Codes come one-hot,
    as a sparse matrix with a column for each vertex of each simplex, other layers as arrays.
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
        self.run_ = self.run if isinstance(self.run, Run) else load(self.run, self.device)
        self.layer_ = self.run_.check_layer(self.layer, self.temperature)
        return self

    def transform(self, images: Iterable[Any]) -> Any:
        """(N, features): an array, or of codes a sparse matrix."""
        check_is_fitted(self)
        found = self.run_.encode(images, self.layer_, self.temperature, self.network, self.batch_size)
        return sparse_codes(found, self._vertices) if self.layer_ == "codes" else found.numpy()

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Simplices and their vertices by number where there are some, else the layer's features."""
        check_is_fitted(self)
        net: Any = self.run_.network(self.network)
        if self.layer_ in ("sem", "codes"):
            simplices, vertices = net.bottleneck.simplices, self._vertices
            names = [f"simplex{i}_vertex{j}" for i in range(simplices) for j in range(vertices)]
        else:
            width = net.encoder.out_features if self.layer_ == "encoder" else net.bottleneck.out_features
            names = [f"{self.layer_}{i}" for i in range(width)]
        return np.array(names, dtype=object)

    @property
    def _vertices(self) -> int:
        bottleneck: Any = self.run_.network(self.network).bottleneck
        return int(bottleneck.vertices)
