"""Streaming on this machine's CPU: ``python benchmarks/streaming.py [OUT.json] [--data-dir D] [--files N]``.

Compares, in one run and in CPU time, decoding for memory with streaming and with torchvision's two views, and
the start from an index with ImageFolder's listing; and measures memory. Photographs are Imagenette's, below
--data-dir, enlarged to 500 x 375 pixels with noise, so that they are as large as ImageNet's; without it they
are drawn. Folders of many images are hard links to them, removed at the end.
"""

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from simplicia.data import image_files
from simplicia.data.augmentation import ViewSettings
from simplicia.data.crops import centre_square, crop_encoded, random_box
from simplicia.devices import choose
from simplicia.provenance import commit, versions

PHOTOS, FOLDERS, SEED = 100, 1000, 0
LINKS = 60_000  # ext4 allows 65,000 of one file


def enlarge(small: Image.Image, rng: np.random.Generator, noise: float) -> Image.Image:
    """A picture of 500 x 375 pixels with noise, so that its file is as large as ImageNet's."""
    pixels = np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC), dtype=float)
    return Image.fromarray((pixels + rng.normal(0, noise, pixels.shape)).clip(0, 255).astype(np.uint8))


def make_photos(folder: Path, data_dir: str | None) -> list[Path]:
    """Photographs of 500 x 375 pixels."""
    rng = np.random.default_rng(SEED)
    found = sorted(Path(data_dir, "imagenette2").rglob("*.jpg")) if data_dir else []
    chosen = [found[i] for i in rng.permutation(len(found))[:PHOTOS]] if found else [None] * PHOTOS
    for i, path in enumerate(chosen):
        if path is None:
            small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        else:
            small = Image.open(path).convert("RGB")
        enlarge(small, rng, 8).save(folder / f"{i:03d}.jpg", quality=93)
    return sorted(folder.glob("*.jpg"))


def torchvision_views(data: bytes, transform) -> None:
    for _ in range(2):
        transform(Image.open(io.BytesIO(data)).convert("RGB"))


def two_view_transform():
    from torchvision.transforms import v2

    s = ViewSettings(blur=(0.5, 0.5))
    return v2.Compose(
        [
            v2.RandomResizedCrop(224, s.crop_scale, s.crop_ratio, v2.InterpolationMode.BICUBIC),
            v2.RandomApply([v2.ColorJitter(s.brightness, s.contrast, s.saturation, s.hue)], s.jitter_prob),
            v2.RandomGrayscale(s.grey),
            v2.RandomApply([v2.GaussianBlur(23, s.blur_sigma)], 0.5),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
        ]
    )


def decoding(photos: list[Path]) -> dict:
    """CPU milliseconds per image of each way, in turns, and how far their pixels are apart."""
    torch.set_num_threads(1)
    data = {path: path.read_bytes() for path in photos}
    rng, transform = np.random.default_rng(SEED), two_view_transform()

    def crops(height: int, width: int) -> list:
        draws = rng.random((2, 22)).tolist()
        return [random_box(d, height, width, (0.08, 1.0), (3 / 4, 4 / 3)) for d in draws]

    def square(path: Path, size: int) -> torch.Tensor:
        return crop_encoded(path.read_bytes(), lambda *shape: [centre_square(*shape)], size)[0]

    ways = {
        "today, centre square of 256": lambda path: image_files.decode(path, 256),
        "streaming, centre square of 256": lambda path: square(path, 256),
        "streaming, two crops of 224": lambda path: crop_encoded(path.read_bytes(), crops, 224),
        "torchvision, two views of 224": lambda path: torchvision_views(data[path], transform),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(6):
        for name, way in ways.items():
            start = time.process_time()
            for path in photos:
                way(path)
            if turn:  # the first warms up
                times[name].append(1e3 * (time.process_time() - start) / len(photos))
    differences = [
        np.abs(
            image_files.decode(p, 256)[0].transpose(2, 0, 1).astype(int) - square(p, 256).numpy().astype(int)
        )
        for p in photos
    ]
    medians = {name: statistics.median(each) for name, each in times.items()}
    today, same, views, theirs = medians.values()
    return {
        "cpu_ms_per_image": medians,
        "streaming_over_today": same / today,
        "torchvision_over_streaming": theirs / views,
        "largest_difference": int(max(d.max() for d in differences)),
        "mean_difference": float(np.mean([d.mean() for d in differences])),
        "mean_bytes": statistics.mean(map(len, data.values())),
    }


def link(folder: Path, photos: list[Path], count: int) -> Path:
    """A folder of so many images in class folders, hard links to the photographs."""
    folder.mkdir()
    originals = [photos[i % len(photos)] for i in range(max(len(photos), count // LINKS + 1))]
    for i in range(FOLDERS):
        place = folder / f"n{i:08d}"
        place.mkdir()
        for j in range(i * count // FOLDERS, (i + 1) * count // FOLDERS):
            os.link(originals[j % len(originals)], place / f"{j:08d}.jpg")
    return folder


START = """
import sys, time, json
import torch, torchvision
from torchvision.datasets import ImageFolder
from simplicia.data import datasets
from simplicia.data.augmentation import ViewSettings
from simplicia.data.streaming import StreamLoader
folder, how = sys.argv[1:3]
start, clock = time.process_time(), time.monotonic()
if how == "ImageFolder":
    count = len(ImageFolder(folder))
else:
    images = datasets.load(folder, "train", size=256, stream=True, keep_aspect=True)
    count = len(images)
    data = StreamLoader(images.images, 256, 0, torch.device("cpu"), views=ViewSettings(), size=224)
    data.fetch(0, data.indices(0))
print(json.dumps({"cpu_s": time.process_time() - start, "wall_s": time.monotonic() - clock, "images": count}))
if how != "ImageFolder":
    data.close()
"""

MEMORY = """
import sys, time, json
from pathlib import Path
import torch
from simplicia.data import datasets
from simplicia.data.augmentation import ViewSettings
from simplicia.data.streaming import StreamLoader
folder, slow = sys.argv[1], float(sys.argv[2])
images = datasets.load(folder, "train", size=256, stream=True, keep_aspect=True)
data = StreamLoader(images.images, 64, 0, torch.device("cpu"), views=ViewSettings(), size=224)
start = time.monotonic()
for step in range(40):
    data.fetch(step, data.indices(step))
    time.sleep(slow)
seconds = time.monotonic() - start
data.close()
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
print(json.dumps({"images": len(images), "peak_mib": peak, "wall_s_per_step": seconds / 40, "slow_s": slow}))
"""


def child(code: str, *words: object) -> dict:
    """Run code in a process of its own; its last line is JSON."""
    command = [sys.executable, "-c", code, *map(str, words)]
    return json.loads(subprocess.check_output(command, text=True).splitlines()[-1])


def starting(folder: Path) -> dict:
    """CPU seconds to a first batch of 256, without and with an index, next to ImageFolder's listing."""
    built = child(START, folder, "stream")
    rows = {name: [child(START, folder, name) for _ in range(3)] for name in ("ImageFolder", "stream")}
    cpu = {name: statistics.median(row["cpu_s"] for row in each) for name, each in rows.items()}
    return {
        "files": rows["ImageFolder"][0]["images"],
        "imagefolder_cpu_s": cpu["ImageFolder"],
        "first_batch_cpu_s": cpu["stream"],
        "first_batch_over_imagefolder": cpu["stream"] / cpu["ImageFolder"],
        "building_the_index_cpu_s": built["cpu_s"],
        "runs": rows,
    }


def memory(folder: Path, photos: list[Path]) -> list[dict]:
    """Peak memory of the loader, with a consumer as fast as it and one ten times slower."""
    rows = []
    for count in (13_000, 130_000):
        linked = link(folder / str(count), photos, count)
        child(MEMORY, linked, 0)  # builds the index, which needs more
        fast = child(MEMORY, linked, 0)
        rows += [fast, child(MEMORY, linked, min(1.0, 10 * fast["wall_s_per_step"]))]
        print(rows[-2:], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", default="results/scale/streaming-cpu.json")
    parser.add_argument("--data-dir")
    parser.add_argument("--work", default=".", help="where temporary folders go")
    parser.add_argument("--files", type=int, default=1_281_167)
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(dir=args.work))
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    os.environ.pop("SIMPLICIA_CACHE", None)
    try:
        (work / "photos").mkdir()
        photos = make_photos(work / "photos", args.data_dir)
        result = {"decoding": decoding(photos)}
        print(result, flush=True)
        rows = memory(work, photos)
        growth = max(row["peak_mib"] for row in rows[2:]) - min(row["peak_mib"] for row in rows[:2])
        result |= {"memory": {"growth_mib": growth, "runs": rows}}
        result |= {"start": starting(link(work / "many", photos, args.files))}
        about = {"photos": "Imagenette, enlarged" if args.data_dir else "drawn", "seed": SEED}
        about |= {name: version(name) for name in ("torchvision", "pillow")}
        result |= {**about, **versions(choose("cpu")), "cores": os.cpu_count(), "commit": commit()}
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result, indent=1))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
