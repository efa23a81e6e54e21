"""Streaming beside a GPU: ``python benchmarks/streaming_gpu.py DATA``.

DATA is Imagenette, as a folder or packed. Each of three parts is added to results/scale/streaming-gpu.json:

loader    images/s of the loader alone, and of torchvision's two views in worker processes
step      seconds of a step of imagenet-byol-sem on streamed photographs and on resident ones, in turns
train     Imagenette with SEM from a folder and from shards: images/s, waiting for data, probe accuracy

The photographs are DATA's, enlarged to 500 x 375 pixels with noise, about 100 kB each. They are in the page
cache, since they were just written. Below eight minutes on an H200.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from streaming import enlarge, two_view_transform

import simplicia
from simplicia.data import datasets, packing
from simplicia.data.loaders import DeviceLoader
from simplicia.data.source_index import stream_layout
from simplicia.data.streaming import AHEAD, StreamLoader
from simplicia.devices import choose, launch
from simplicia.errors import UserError
from simplicia.evaluate.features import load_labelled
from simplicia.evaluate.probe import probe
from simplicia.provenance import commit, versions
from simplicia.settings import with_changes
from simplicia.train import auto, recipes
from simplicia.train.run_dir import read_log
from simplicia.train.trainer import Trainer

NOISE = 12  # makes photographs of about 100 kB
WARM_UP = AHEAD + 1  # batches: as many are ready when a loader had time


def unpack(data: Path, out: Path) -> Path:
    """The images of a folder or of shards as files, <split>/<class>/*."""
    splits = stream_layout(data)
    for name, source in (("train", splits.train), ("val", splits.test)):
        for i, label in enumerate(source.labels):
            path = out / name / source.classes[label] / f"{i:05d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read(i))
    return out


def enlarged(paths: list[Path], out: Path, i: int) -> int:
    """Write one photograph; returns its bytes."""
    small = Image.open(paths[i % len(paths)]).convert("RGB")
    file = BytesIO()
    enlarge(small, np.random.default_rng(i), NOISE).save(file, "JPEG", quality=93)
    path = out / f"{i % 10}" / f"{i:05d}.jpg"
    path.write_bytes(file.getvalue())
    return len(file.getvalue())


def make_photos(folder: Path, out: Path, count: int) -> float:
    """Write photographs of ten classes; returns their mean size in bytes."""
    paths = sorted((folder / "train").rglob("*.jpg"))
    for i in range(10):
        (out / str(i)).mkdir(parents=True)
    with ProcessPoolExecutor() as executor:
        return statistics.mean(executor.map(partial(enlarged, paths, out), range(count), chunksize=32))


class TwoViews:
    """What torchvision's data set gives: two views of an image, as lightly takes them."""

    def __init__(self):
        self.transform = two_view_transform()

    def __call__(self, image):
        return self.transform(image), self.transform(image)


def rate(take: Callable[[], object], batch: int, seconds: float, warm_up: int, most: int) -> float:
    """Images/s of what takes batches, once workers run and what was ready ahead is used."""
    for _ in range(warm_up):
        take()
    start, batches = time.perf_counter(), 0
    while batches < most and time.perf_counter() - start < seconds:
        take()
        batches += 1
    return batches * batch / (time.perf_counter() - start)


def loader(photos: Path, args) -> dict:
    """Images/s of both loaders, in turns."""
    from torchvision.datasets import ImageFolder

    views = recipes.get("imagenet-byol-sem").views
    images = datasets.load(photos, size=256, stream=True, keep_aspect=True).images
    ours = StreamLoader(images, args.batch, 0, choose(args.device), views=views, size=224)
    workers = args.workers or len(os.sched_getaffinity(0))
    part = args.batch // 4  # each worker makes whole batches: smaller ones come more evenly
    theirs = torch.utils.data.DataLoader(
        ImageFolder(photos, TwoViews()), part, shuffle=True, num_workers=workers, drop_last=True
    )
    numbers = itertools.count()

    def fetch() -> None:
        step = next(numbers)
        ours.fetch(step, ours.indices(step))

    rates: dict[str, list[float]] = {"streaming": [], "torchvision": []}
    for _ in range(args.turns):
        rates["streaming"].append(rate(fetch, args.batch, args.seconds, WARM_UP, 10**6))
        most = len(theirs) - workers  # in rounds: workers that started together finish together
        rates["torchvision"].append(rate(partial(next, iter(theirs)), part, 1e9, workers, most))
    ours.close()
    ours_per_s, theirs_per_s = map(statistics.median, rates.values())
    about = {"torchvision_workers": workers, "streaming_threads": images.threads, "batch_size": args.batch}
    return {"images_per_s": rates, "streaming_over_torchvision": ours_per_s / theirs_per_s, **about}


def trainer_on(photos: Path, stream: bool, args, device: torch.device) -> Trainer:
    changes = {"data": str(photos), "data_device": "stream" if stream else "device", **args.step_changes}
    recipe = with_changes(recipes.get("imagenet-byol-sem"), changes)
    images, test = auto.training_images(recipe, None, False, True)
    recipe, _ = auto.resolve(recipe, images, device)
    return Trainer(recipe, images, launch(args.device, 1, recipe.precision), args.engine, test)


def steps(photos: Path, args) -> dict:
    """Seconds per step, streamed and resident in turns."""
    device = choose(args.device)
    both = {name: trainer_on(photos, name == "streamed", args, device) for name in ("streamed", "resident")}
    times: dict[str, list[float]] = {name: [] for name in both}
    taken = dict.fromkeys(both, 0)
    for turn in range(args.turns + 1):
        for name, trainer in both.items():
            for i in range(args.steps):
                start = time.perf_counter()
                trainer.step(taken[name]).loss.item()
                taken[name] += 1
                if turn and i >= WARM_UP:  # the first turn compiles
                    times[name].append(time.perf_counter() - start)
    data = both["streamed"].step.data
    assert isinstance(data, StreamLoader) and isinstance(both["resident"].step.data, DeviceLoader)
    data.close()
    medians = {name: statistics.median(each) for name, each in times.items()}
    recipe = both["streamed"].recipe
    return {
        "seconds_per_step": medians,
        "streamed_over_resident_speed": medians["resident"] / medians["streamed"],
        "engine": type(both["streamed"].step).__name__,
        "batch_size": recipe.batch_size,
        "micro_batches": recipe.accumulation_steps(),
        "decoding_threads": data.stream.threads,
        "images_per_s": recipe.batch_size / medians["streamed"],
        "runs": times,
    }


def train(folder: Path, shards: Path, work: Path, args) -> Iterator[dict]:
    """Train Imagenette through both, and probe."""
    fetch = StreamLoader.fetch
    for name, data in (("folder", folder), ("shards", shards)):
        waits: list[float] = []

        def timed(self, step, indices, waits=waits):
            start = time.perf_counter()
            rows_of_batch = fetch(self, step, indices)
            waits.append(time.perf_counter() - start)
            return rows_of_batch

        StreamLoader.fetch = timed
        started = time.perf_counter()
        try:
            where = {"data": str(data), "data_device": "stream", "out": work / "runs" / name}
            how = {"device": args.device, "engine": args.engine, "epochs": args.epochs, "quiet": True}
            run = simplicia.pretrain("imagenet-byol-sem", **where, **how, **args.train_changes)
        finally:
            StreamLoader.fetch = fetch
        seconds = time.perf_counter() - started
        rates = [line["images_per_s"] for line in read_log(run.path / "log.jsonl") if "images_per_s" in line]
        result = probe(run, *load_labelled(run), "sem")
        late = waits[len(waits) // 5 :]  # without what compiles
        yield (
            {
                "from": name,
                "images_per_s": statistics.median(rates[len(rates) // 2 :]),
                "data_wait_ms_per_step": 1e3 * statistics.mean(late),
                "step_ms": 1e3 * run.recipe.batch_size / statistics.median(rates[len(rates) // 2 :]),
                "engine": args.engine,
                "epochs": args.epochs,
                "seconds": seconds,
                "loss": run.state["loss"],
                "probe_accuracy": result.accuracy,
                "probe_temperature": result["temperature"],
                "changes": args.train_changes,
            }
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/scale/streaming-gpu.json"))
    parser.add_argument("--parts", nargs="+", default=["loader", "step", "train"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", default="captured")
    parser.add_argument("--work", help="where temporary folders go")
    parser.add_argument("--photos", type=int, default=5120)
    parser.add_argument("--batch", type=int, default=256, help="of the loaders")
    parser.add_argument("--workers", type=int, help="of torchvision (default: one per core)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each loader's turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="of a turn")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--step-changes", type=json.loads, default={}, help="JSON: settings of the steps")
    small = {"encoder": "resnet18", "image_size": 128, "decode_size": 128, "batch_size": 256}
    parser.add_argument(
        "--train-changes", type=json.loads, default=small, help="JSON: settings of the trained runs"
    )
    args = parser.parse_args()
    try:
        device = choose(args.device)
    except UserError as error:
        parser.error(str(error))
    work = Path(tempfile.mkdtemp(dir=args.work))
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    os.environ.pop("SIMPLICIA_CACHE", None)
    out = {**versions(device), "cores": os.cpu_count(), "commit": commit(), "page_cache": "warm"}
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def write(name, part):
        out[name] = part
        args.out.write_text(json.dumps(out, indent=1) + "\n")
        print(name, f"{time.perf_counter() - start:.0f} s", json.dumps(part), flush=True)

    start = time.perf_counter()
    try:
        folder, photos, shards = unpack(args.data, work / "folder"), work / "photos", work / "shards"
        if {"loader", "step"} & {*args.parts}:
            size = make_photos(folder, photos, args.photos)
            write("photos", {"count": args.photos, "pixels": [500, 375], "mean_bytes": size})
        if "loader" in args.parts:
            write("loader", loader(photos, args))
        if "step" in args.parts:
            write("step", steps(photos, args))
            if args.device == "cuda":
                torch.cuda.empty_cache()
        if "train" in args.parts:
            packing.pack(folder, shards, size=128)
            rows = []
            for row in train(folder, shards, work, args):
                rows.append(row)
                write("train", rows)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
