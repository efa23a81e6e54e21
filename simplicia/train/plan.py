"""What a training would take, measured by three steps of it."""

from dataclasses import dataclass

from simplicia.progress import duration
from simplicia.train.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """A recipe with every open setting decided, and what training it would take."""

    recipe: Recipe
    parameters: int  # trained
    target_parameters: int
    memory_bytes: int  # of weights, gradients, momentum and images
    peak: str  # memory in use, in words
    steps: int
    steps_per_epoch: int
    seconds: float
    device: str

    def __str__(self) -> str:
        return "\n".join(
            (
                f"parameters: {self.parameters:,} trained, {self.target_parameters:,} in the target network",
                f"memory: {self.memory_bytes / 2**30:.2f} GiB for weights, gradients, momentum and images; "
                f"{self.peak}",
                f"steps: {self.steps:,} ({self.steps_per_epoch:,} per epoch)",
                f"time: about {duration(self.seconds)} on {self.device}",
                "dry run: nothing was written",
            )
        )
