"""Several trainings on one GPU at once: ``python benchmarks/together.py RECIPE [RECIPE] [--json OUT.json]``.

Each recipe is a process of its own that takes steps on random images, first one after the other, then all at
the same time. Where CUDA's Multi-Process Service runs (``nvidia-cuda-mps-control -d``) kernels of several
processes share the GPU; without it they take turns.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SECONDS = 20.0
AT_ONCE = 10  # steps until the host waits for the device


def steps(recipe: str, seconds: float) -> None:
    """In a process of its own: get ready, say so, wait for a word, and say how many steps were taken."""
    import torch

    from simplicia import devices
    from simplicia.data.datasets import ImageSet
    from simplicia.train import recipes
    from simplicia.train.auto import resolve
    from simplicia.train.trainer import Trainer

    made = recipes.get(recipe)
    fabric = devices.launch("auto", 1, made.precision)
    size = made.image_size or 32
    images = ImageSet("random", torch.randint(0, 256, (10_000, 3, size, size), dtype=torch.uint8))
    made, _ = resolve(made, images, fabric.device)
    training = Trainer(made, images, fabric)
    for step in range(5):
        training.step(step).loss.item()
    for _ in range(2):  # alone, and with the others
        print("ready", flush=True)
        sys.stdin.readline()
        start, taken = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for _ in range(AT_ONCE):
                output = training.step(taken)
                taken += 1
            output.loss.item()
        print(taken * made.batch_size / (time.perf_counter() - start), flush=True)


def measure(recipes: list[str], seconds: float) -> dict[str, Any]:
    """Images per second of each recipe, alone on the device and together with the others."""
    from simplicia.devices import choose
    from simplicia.provenance import commit, versions

    command = [sys.executable, __file__, "--seconds", str(seconds), "--steps"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, recipe], **pipes) for recipe in recipes]
    try:
        for process in processes:
            _read(process)
        alone = []
        for process in processes:
            _go(process)
            alone.append(float(_read(process)))
            _read(process)
        for process in processes:
            _go(process)
        together = [float(_read(process)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    rows = [
        {"recipe": name, "images_per_s_alone": one, "images_per_s_beside": other}
        for name, one, other in zip(recipes, alone, together, strict=True)
    ]
    # how much of the work of one device, used by each in turn, is done in the same time
    share = sum(other / one for one, other in zip(alone, together, strict=True))
    return {"mps": _mps(), "rows": rows, "share": share, "commit": commit(), **versions(choose())}


def _go(process: Any) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def _read(process: Any) -> str:
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a process ended with status {process.wait()}")
    return line


def _mps() -> bool:
    """Whether the Multi-Process Service answers."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        return False
    asked = {"input": "get_server_list\n", "capture_output": True, "text": True}
    return subprocess.run([control], **asked).returncode == 0  # type: ignore[call-overload]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", default=["cifar100-barlow", "cifar100-byol-sem"])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", metavar="RECIPE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps is not None:
        steps(given.steps, given.seconds)
        return
    result = measure(given.recipes, given.seconds)
    print(json.dumps(result, indent=1))
    if given.json is not None:
        rows = json.loads(given.json.read_text()) if given.json.exists() else []
        given.json.write_text(json.dumps([*rows, result], indent=1) + "\n")


if __name__ == "__main__":
    main()
