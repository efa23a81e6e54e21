"""Pre-training: recipes, the loop, checkpoints."""

from simplicia.train.loop import pretrain
from simplicia.train.recipe import Recipe

__all__ = ["Recipe", "pretrain"]
