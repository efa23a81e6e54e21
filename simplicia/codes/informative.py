"""Choose the simplices that say most about images and least of the same thing."""

import numpy as np
import torch
from torch import Tensor

from simplicia.neighbours import one_hots

CANDIDATES = 4  # times as many simplices as are kept compete, those of largest entropy


def entropies(codes: Tensor, vertices: int) -> Tensor:
    """The entropy of each simplex's code over images (N, L), in bits: (L,)."""
    counts = torch.stack([torch.bincount(column, minlength=vertices) for column in codes.long().T])
    return _entropy(counts / len(codes))


@torch.no_grad()
def choose(codes: np.ndarray, vertices: int, count: int) -> np.ndarray:
    """The ``count`` most informative simplices of codes (N, L), in the order in which they are chosen.

    The first has the largest entropy. Each next one has the largest entropy given its most similar chosen
    one, min over j of H(i | j) = H(i) - I(i; j): what it adds if only that one is known.
    """
    all_codes = torch.from_numpy(codes.astype(np.int64))
    entropy = entropies(all_codes, vertices)
    order = entropy.argsort(descending=True, stable=True)
    if count >= len(order):
        return order.numpy()  # all of them: only a prefix scan depends on the order
    order = order[: CANDIDATES * count]
    entropy, some = entropy[order], all_codes[:, order]
    indicators = one_hots(some, vertices)  # (N, candidates * V)
    left = entropy.clone()  # what each would add; less than nothing once it is chosen
    chosen = []
    for _ in range(count):
        best = int(left.argmax())
        chosen.append(best)
        table = one_hots(some[:, best : best + 1], vertices).T @ indicators / len(some)
        joint = table.view(vertices, len(order), vertices).permute(1, 0, 2).flatten(1)  # (candidates, V * V)
        left = torch.minimum(left, _entropy(joint) - entropy[best])
        left[best] = -1
    return order[chosen].numpy()


def _entropy(probabilities: Tensor) -> Tensor:
    """Entropy of the last dimension, in bits."""
    p = probabilities.double()
    return -torch.special.xlogy(p, p).sum(-1) / np.log(2)
