"""BYOL with every bottleneck on the built-in shapes, against the same network untrained, by kNN.

``python benchmarks/bottlenecks.py [OUT.json]``; about a minute and a half for each on two CPU cores.
"""

import json
import sys
import tempfile
from pathlib import Path

from simplicia import bottlenecks, pretrain
from simplicia.evaluate.features import load_labelled
from simplicia.evaluate.knn import knn
from simplicia.provenance import commit


def main(out: str = "results/shapes/bottlenecks.json") -> None:
    at, rows = commit(), []
    for name in bottlenecks.names():
        recipe = "shapes-byol" if name == "none" else f"shapes-byol-{name}"
        with tempfile.TemporaryDirectory() as folder:
            run = pretrain(recipe, out=f"{folder}/trained", quiet=True)
            # no rate, so that only BatchNorm's statistics move: the network as it was drawn
            still = {"optim.lr": 0.0, "optim.warmup_lr": 0.0, "optim.min_lr": 0.0}
            fresh = pretrain(recipe, out=f"{folder}/fresh", quiet=True, epochs=1, **still)
            for layer in ("encoder", *({run.check_layer(None)} - {"encoder"})):
                trained, untrained = (knn(r, *load_labelled(r), layer)["accuracy"] for r in (run, fresh))
                row = {"bottleneck": name, "recipe": recipe, "epochs": run.recipe.epochs, "layer": layer}
                rows.append(row | {"knn_accuracy": trained, "untrained_knn_accuracy": untrained})
                rows[-1] |= {"seconds": run.state["seconds"], "seed": run.recipe.seed, "commit": at}
                print(f"{name:7} {layer:10} {trained:5.1f} untrained {untrained:5.1f}", flush=True)
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
