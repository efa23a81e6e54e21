"""Time of SEM on a frozen encoder: extraction of features, then training on them.

    python benchmarks/frozen.py RUN FOLDER [--epochs 20] [--json results/bench/frozen.json]

The encoder of RUN, and a ViT-S/14 with drawn weights on 64 of the images: time does not depend on weights.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file

import simplicia
from simplicia.data.folder import list_images
from simplicia.provenance import commit, versions
from simplicia.result import write_json

VIT, SOME = "vit_small_patch14_dinov2.lvd142m", 64


def train(data: Path, out: Path, **options: object) -> dict[str, object]:
    begun = time.perf_counter()
    run = simplicia.pretrain("byol-sem", freeze="encoder", data=str(data), out=out, device="cpu", **options)
    seconds, extraction = time.perf_counter() - begun, run.state["extraction"]
    keys = "images", "views", "seconds", "images_per_s"
    result = {"encoder": run.recipe.encoder, "image_size": run.recipe.image_size, "epochs": run.recipe.epochs}
    result |= {"extraction": {key: extraction[key] for key in keys}}
    return result | {"training_seconds": seconds - extraction["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--json", type=Path, default=Path("results/bench/frozen.json"))
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows.append(train(options.folder, folder / "a", init=options.run, epochs=options.epochs))
        save_file(timm.create_model(VIT, img_size=224).state_dict(), folder / "vit.safetensors")
        (folder / "some").mkdir()
        for path in list_images(options.folder).files[:SOME]:
            shutil.copy(path, folder / "some")
        vit = {"encoder": VIT, "encoder_weights": str(folder / "vit.safetensors")}
        rows.append(train(folder / "some", folder / "b", epochs=1, batch_size=32, **vit))
    about = {"cores": os.cpu_count(), "load_average": os.getloadavg()[0], "commit": commit()}
    write_json(options.json, {"rows": rows, **about, **versions(torch.device("cpu"))})


if __name__ == "__main__":
    main()
