"""The paper's tables and figures as experiments (``simplicia reproduce table1``), and sweeps over settings.

``cifar`` and ``imagenet`` declare the paper's experiments, ``extra`` further ones.
``reproduce`` and ``sweep`` train and measure through one ``runner``.
"""

# isort: off
from simplicia.experiments import cifar, imagenet, extra  # noqa: F401 (registers them in page order)

# isort: on
from simplicia.experiments.experiment import EXPERIMENTS, Cell, Experiment, experiment, get

__all__ = ["EXPERIMENTS", "Cell", "Experiment", "experiment", "get"]
