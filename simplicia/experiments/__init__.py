"""The paper's tables and figures as experiments that anyone can run: ``simplicia reproduce table1``.

Experiments are declared in ``cifar``, ``looking`` and ``imagenet``, and those that the paper does not have in
``beyond``; ``runner`` trains and measures what they declare and knows none of them; ``tables`` builds
Markdown from the JSON that the runner wrote.
"""

from simplicia.errors import unknown
from simplicia.experiments import cifar, imagenet
from simplicia.experiments import extra as beyond
from simplicia.experiments import internals as looking
from simplicia.experiments.experiment import Cell, Experiment

ROOMS = (cifar, looking, imagenet, beyond)
EXPERIMENTS = {e.name: e for room in ROOMS for e in room.EXPERIMENTS}

__all__ = ["EXPERIMENTS", "Cell", "Experiment", "get"]


def get(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
