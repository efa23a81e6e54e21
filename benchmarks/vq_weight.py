"""The weight of vector quantisation's loss, chosen on held-out training images of the built-in shapes.

    python benchmarks/vq_weight.py --json results/shapes/vq-weight.json

BYOL is trained on nine tenths of the training images with both forms and each weight; a row has the kNN
accuracy on the last tenth. No test image is read. The file is written after each run; its rows are kept.
"""

import argparse
import json
import tempfile
from pathlib import Path

from simplicia import pretrain
from simplicia.data import datasets
from simplicia.evaluate.knn import knn
from simplicia.provenance import commit, versions

FORMS = {
    "vq": "a codebook for each position, moving averages",
    "vq-shared": "one codebook, learned by the loss",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", type=float, nargs="+", default=[0.25, 0.05, 0.01, 0.002])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    rows = json.loads(options.json.read_text()) if options.json.exists() else []
    known = {(row["bottleneck"], row["commitment"], row["epochs"], row["seed"]) for row in rows}
    for form in options.forms:
        for weight in options.weights:
            if (form, weight, options.epochs, options.seed) in known:
                continue
            changes = {
                "epochs": options.epochs,
                "seed": options.seed,
                "holdout": 0.1,
                "vq.commitment": weight,
            }
            with tempfile.TemporaryDirectory() as folder:
                run = pretrain(f"shapes-byol-{form}", out=f"{folder}/run", quiet=True, **changes)
                train, held_out = datasets.split(datasets.load("shapes", "train"), run.recipe.holdout)
                accuracies = {
                    layer: knn(run, train, held_out, layer)["accuracy"] for layer in ("encoder", "quantised")
                }
            row = {"bottleneck": form, "form": FORMS[form], "commitment": weight, **accuracies}
            row |= {"protocol": "kNN on held-out training images", "images": len(held_out)}
            row |= {"epochs": options.epochs, "seed": options.seed, "seconds": run.state["seconds"]}
            rows.append(row | {"commit": commit(), **versions(run.device)})
            print(f"{form:10} {weight:6g} {accuracies}", flush=True)
            options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
