"""Our views compared with torchvision's and kornia's: ``python benchmarks/views.py [OUT.json]``.

All make the same kind of view (crop, jitter, grey, blur, solarise, flip). torchvision works image by image
on the CPU, as its users run it in loader workers (one process here: divide by the workers you have); kornia,
if it is installed, works on the batch on the device, each image with its own numbers, as ours does.
"""

import json
import statistics
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from simplicia.cli.bench.parts import MEAN, STD, STRONG, bench_views
from simplicia.cli.bench.step import time_in_turns
from simplicia.devices import choose


def torchvision_views(images: torch.Tensor, size: int) -> None:
    from torchvision.transforms import v2

    kernel = max(3, size // 10 | 1)
    jitter = v2.ColorJitter(STRONG.brightness, STRONG.contrast, STRONG.saturation, STRONG.hue)
    view = v2.Compose(
        [
            v2.RandomResizedCrop(size, STRONG.crop_scale, STRONG.crop_ratio, v2.InterpolationMode.BICUBIC),
            v2.RandomApply([jitter], STRONG.jitter_prob),
            v2.RandomGrayscale(STRONG.grey),
            v2.RandomApply([v2.GaussianBlur(kernel, STRONG.blur_sigma)], STRONG.blur[0]),
            v2.RandomSolarize(128, STRONG.solarise[0]),
            v2.RandomHorizontalFlip(STRONG.flip),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    for _ in range(2):
        torch.stack([view(image) for image in images])


def kornia_views(images: torch.Tensor, size: int):
    import kornia.augmentation as K

    kernel = max(3, size // 10 | 1)
    jitter = (STRONG.brightness, STRONG.contrast, STRONG.saturation, STRONG.hue)
    view = K.AugmentationSequential(
        K.RandomResizedCrop((size, size), STRONG.crop_scale, STRONG.crop_ratio, resample="bicubic"),
        K.ColorJitter(*jitter, p=STRONG.jitter_prob),
        K.RandomGrayscale(p=STRONG.grey),
        K.RandomGaussianBlur((kernel, kernel), STRONG.blur_sigma, p=STRONG.blur[0]),
        K.RandomSolarize(p=STRONG.solarise[0]),
        K.RandomHorizontalFlip(p=STRONG.flip),
        K.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
        data_keys=["input"],
    )
    return lambda: [view(images.float() / 255) for _ in range(2)]


def tell(row: dict[str, Any]) -> None:
    text = f"{row['batch']} x {row['size']} px  {row['views']:40} {row['ms_per_view']:.3f} ms per view"
    print(text, flush=True)


def main(out: str = "results/bench/views.json") -> None:
    device = choose("auto")
    torch.manual_seed(0)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    rows = bench_views("auto")
    for row in rows:
        tell(row)
    for batch, size in ((256, 32), (128, 224)):
        shape, where = (batch, 3, size, size), {"cpu": torch.device("cpu"), "device": device}
        images = {k: torch.randint(0, 256, shape, dtype=torch.uint8, device=d) for k, d in where.items()}
        ours = [r for r in rows if (r["batch"], r["size"]) == (batch, size)][-1]
        ways = {
            "torchvision, image by image on the CPU": ("cpu", partial(torchvision_views, images["cpu"], size))
        }
        try:
            ways["kornia"] = ("device", kornia_views(images["device"], size))
        except ImportError:
            print("kornia is not installed; its column is left out", file=sys.stderr)
        for name, (place, way) in ways.items():
            seconds = statistics.median(time_in_turns({name: way}, 5, where[place])[name])
            made = {"views": name, "ms_per_view": 1e3 * seconds / 2, "images_per_s": batch / seconds}
            made |= {"version": version(name.split(",")[0]), "seed": 0}
            rows.append(
                ours
                | made
                | {"speedup_over_eager": None, "ours_is_faster_by": 1e3 * seconds / 2 / ours["ms_per_view"]}
            )
            tell(rows[-1])
            Path(out).write_text(json.dumps(rows, indent=1) + "\n")  # the next may take long


if __name__ == "__main__":
    main(*sys.argv[1:])
