"""The paper's tables and figures as experiments that anyone can run: ``simplicia reproduce table1``.

Experiments are declared in ``cifar``, ``looking`` and ``imagenet``; ``runner`` trains and measures what they
declare and knows none of them; ``tables`` builds Markdown from the JSON that the runner wrote.
"""

from simplicia.errors import unknown
from simplicia.reproduce import cifar, imagenet, looking
from simplicia.reproduce.experiment import Cell, Experiment

EXPERIMENTS = {e.name: e for e in (*cifar.EXPERIMENTS, *looking.EXPERIMENTS, *imagenet.EXPERIMENTS)}

__all__ = ["EXPERIMENTS", "Cell", "Experiment", "get"]


def get(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
