"""Transfer of Flowers-102's shape: 45 regularisers on codes, exact: ``python benchmarks/transfer.py [OUT.json]``.

The codes are drawn, not encoded: 2,040 samples of 102 classes, 5,000 simplices of 13 vertices, of which a
share agrees with the class's own. One regulariser is fitted by scikit-learn on the sparse matrix as well.
"""

import json
import sys
import time
from pathlib import Path

import torch

from simplicia.evaluate.logistic import Codes, fit
from simplicia.evaluate.transfer import TransferSettings, choose
from simplicia.provenance import commit, versions

CLASSES, SIMPLICES, VERTICES, SHARE = 102, 5000, 13, 0.03


def main(out: str = "results/bench/transfer.json") -> None:
    g = torch.Generator().manual_seed(0)
    own = torch.randint(VERTICES, (CLASSES, SIMPLICES), generator=g)
    labels = torch.arange(2040) % CLASSES
    kept = torch.rand(2040, SIMPLICES, generator=g) < SHARE
    drawn = torch.where(kept, own[labels], torch.randint(VERTICES, kept.shape, generator=g))
    codes, train, val = Codes(drawn, VERTICES), torch.arange(1020), torch.arange(1020, 2040)

    start = time.monotonic()
    settings = TransferSettings(solver="rotate")
    chosen = choose(codes[train], labels[train], codes[val], labels[val], CLASSES, settings, quiet=False)
    choosing = time.monotonic() - start

    path = settings.path()
    start = time.monotonic()
    fits = list(fit(codes, labels, CLASSES, path, "rotate"))
    fitting = time.monotonic() - start

    at = path.index(chosen.regulariser)
    start = time.monotonic()
    (theirs,) = fit(codes, labels, CLASSES, [path[at]], "sklearn")
    sklearn_seconds = time.monotonic() - start
    guesses = [(codes.times(f.weight) + f.bias).argmax(1) for f in (fits[at], theirs)]
    result = {
        "samples": 2040,
        "features": SIMPLICES * VERTICES,
        "classes": CLASSES,
        "share_of_own_codes": SHARE,
        "regularisers": len(path),
        "seconds_choose_on_half_and_refit": choosing,
        "seconds_all_fits_on_all_samples": fitting,
        "fits_converged": sum(f.converged for f in fits),
        "regulariser": path[at],
        "loss": fits[at].loss,
        "sklearn_loss": theirs.loss,
        "relative_difference": abs(fits[at].loss - theirs.loss) / theirs.loss,
        "same_guesses": int((guesses[0] == guesses[1]).sum()),
        "sklearn_seconds_this_fit": sklearn_seconds,
        "threads": torch.get_num_threads(),
        "commit": commit(),
        **versions(torch.device("cpu")),
    }
    print(json.dumps(result, indent=1))
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
