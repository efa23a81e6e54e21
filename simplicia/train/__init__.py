"""Pre-training: recipes, the step, the loop, checkpoints. ``simplicia.pretrain`` is the door."""
