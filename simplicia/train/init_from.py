"""The weights that training begins with, where they are those of another run."""

from pathlib import Path

import torch

from simplicia.errors import UserError
from simplicia.methods import Method
from simplicia.run import check
from simplicia.train import checkpoint


@torch.no_grad()
def take_over(method: Method, path: str | Path) -> tuple[int, int]:
    """Give a method the weights and statistics of a run, as far as they are of the same name and shape.

    A UserError unless its whole encoder is. What a method has besides its networks, such as queues, begins
    anew; a target network that the run does not have is a copy of what the online one is given. Returns how
    many tensors were taken, of how many.
    """
    newest = check(path)
    tensors, _ = checkpoint.read(newest)
    there = {
        key.removeprefix("method."): value for key, value in tensors.items() if key.startswith("method.")
    }
    own = {k: v for k, v in method.state_dict().items() if "." in k and not k.startswith("queue.")}
    taken = 0
    for key, value in own.items():
        found = there.get(key, there.get(key.replace("target.", "online.", 1)))
        if found is not None and found.shape == value.shape:
            value.copy_(found)
            taken += 1
        elif key.startswith("online.encoder."):
            why = "lacks it" if found is None else f"has it as {tuple(found.shape)}"
            raise UserError(
                f"init is {str(path)!r}, whose encoder is another: {key} is {tuple(value.shape)} here, and "
                f"the run {why}; give the encoder, stem and stem_padding that it was trained with"
            )
    return taken, len(own)
