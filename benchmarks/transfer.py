"""Transfer of Flowers-102's shape, 45 regularisers, exact: ``python benchmarks/transfer.py [OUT.json]``.

The codes are drawn, not encoded: 2,040 samples of 102 classes, 5,000 simplices of 13 vertices, a share of
which agrees with the class's own. One regulariser is fitted by scikit-learn on the sparse matrix as well.
"""

import json
import sys
import time
from pathlib import Path

import torch

from simplicia.evaluate.logistic import Codes, fit
from simplicia.evaluate.transfer import TransferSettings, choose
from simplicia.provenance import commit, versions

CLASSES, SIMPLICES, VERTICES, SHARE = 102, 5000, 13, 0.06


def main(out: str = "results/bench/transfer.json") -> None:
    measured = commit()  # now: the code that runs is what was imported, whatever is committed meanwhile
    g = torch.Generator().manual_seed(0)
    own = torch.randint(VERTICES, (CLASSES, SIMPLICES), generator=g)
    labels = torch.arange(2040) % CLASSES
    kept = torch.rand(2040, SIMPLICES, generator=g) < SHARE
    drawn = torch.where(kept, own[labels], torch.randint(VERTICES, kept.shape, generator=g))
    codes = Codes(drawn, VERTICES)
    train, val = (Codes(half, VERTICES) for half in drawn.chunk(2))

    wall, busy = time.monotonic(), time.process_time()
    settings = TransferSettings(solver="rotate")
    _, chosen = choose(train, labels[:1020], val, labels[1020:], CLASSES, settings, quiet=False)
    choosing, choosing_busy = time.monotonic() - wall, time.process_time() - busy

    wall, busy, converged = time.monotonic(), time.process_time(), 0
    path = settings.path()
    for regulariser, found in zip(path, fit(codes, labels, CLASSES, path, "rotate"), strict=True):
        converged += found.converged
        if regulariser == chosen["regulariser"]:
            ours = found
    fitting, fitting_busy = time.monotonic() - wall, time.process_time() - busy

    wall = time.monotonic()
    (theirs,) = fit(codes, labels, CLASSES, [chosen["regulariser"]], "sklearn")
    sklearn_seconds = time.monotonic() - wall
    guesses = [(codes.times(f.weight) + f.bias).argmax(1) for f in (ours, theirs)]
    result = {
        "samples": 2040,
        "features": SIMPLICES * VERTICES,
        "classes": CLASSES,
        "share_of_own_codes": SHARE,
        "regularisers": len(path),
        "choose_on_half_and_refit_seconds": choosing,
        "choose_on_half_and_refit_cpu_seconds": choosing_busy,
        "all_fits_on_all_samples_seconds": fitting,
        "all_fits_on_all_samples_cpu_seconds": fitting_busy,
        "fits_converged": converged,
        "regulariser": chosen["regulariser"],
        "loss": ours.loss,
        "sklearn_loss": theirs.loss,
        "relative_difference": abs(ours.loss - theirs.loss) / theirs.loss,
        "same_guesses": int((guesses[0] == guesses[1]).sum()),
        "sklearn_seconds": sklearn_seconds,
        "threads": torch.get_num_threads(),
        "commit": measured,
        **versions(torch.device("cpu")),
    }
    print(json.dumps(result, indent=1))
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
