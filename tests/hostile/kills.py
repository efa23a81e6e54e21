"""SIGKILL at random moments: training must go on to the same weights, and no verb may leave a torn file.

Every command runs in a forked process, so a kill costs no start-up. The moments are drawn from a seed.
"""

import json
import os
import random
import shutil
import signal
import tempfile
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import fuzz
import numpy as np
import onnx
import pyarrow.parquet
import torch
from safetensors.torch import load_file

from simplicia.train import checkpoint

SECONDS = 300  # of CPU time: the demo takes more than a fuzzed call
VERB_OF = {"page": "reproduce", "csv": "encode", "parquet": "encode", "pt2": "export", "onnx": "export"}
VERB_OF |= {"add": "index"}


@dataclass
class Kills:
    """How many processes were killed, by what they did, and what went wrong."""

    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def start(words: list[str], log: Path) -> int:
    """Run a command in a forked process; returns its number."""
    child = os.fork()
    if child == 0:
        fuzz._run(words, log.parent, log, SECONDS)
    return child


def kill_after(child: int, seconds: float) -> bool:
    """Kill a process after a while; False if it ended before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def finish(words: list[str], log: Path) -> str | None:
    """Run a command to its end; returns what it printed if it failed."""
    _, code = os.waitpid(start(words, log), 0)
    text = log.read_text(errors="replace")
    failed = os.waitstatus_to_exitcode(code) != 0 or "Traceback" in text
    return f"{' '.join(words)[:200]}: {text[-800:]}" if failed else None


def tensors(run: Path) -> dict[str, torch.Tensor]:
    newest = checkpoint.latest(run / "checkpoint")
    assert newest is not None
    return checkpoint.read(newest)[0]


def torn(folder: Path) -> list[str]:
    """Files that are not complete; hidden ones do not count."""
    readers = {
        ".json": lambda path: json.loads(path.read_text()),
        ".svg": ElementTree.parse,
        ".graphml": ElementTree.parse,
        ".npz": lambda path: [np.load(path)[name] for name in np.load(path)],
        ".safetensors": load_file,
        ".index": load_file,
        ".parquet": pyarrow.parquet.read_table,
        ".pt2": zipfile.ZipFile,
        ".onnx": onnx.load,
        ".tar": lambda path: path.read_bytes().endswith(bytes(1024)) or 1 / 0,
        ".jpg": lambda path: path.read_bytes().endswith(b"\xff\xd9") or 1 / 0,
        ".csv": lambda path: path.read_bytes().endswith(b"\n") or 1 / 0,
        ".html": lambda path: path.read_text().rstrip().endswith("</html>") or 1 / 0,
        ".png": lambda path: path.read_bytes().endswith(b"IEND\xaeB`\x82") or 1 / 0,
        ".webp": lambda path: (
            int.from_bytes(path.read_bytes()[4:8], "little") + 8 == path.stat().st_size or 1 / 0
        ),
    }
    found = []
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and path.suffix in readers:
            try:
                readers[path.suffix](path)
            except Exception as error:
                found.append(f"{path.name} is torn ({error!r})")
    return found


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*writing*")]


def kill_training(kills: Kills, count: int, rng: random.Random, world: fuzz.World, here: Path) -> None:
    """Kill and resume trainings until ``count`` were killed; each ends with the reference's weights."""
    base = ["byol-sem", "--data", str(world.photos), *fuzz.TRAIN.split(), "--epochs", "8"]
    words = ["pretrain", *base, "--checkpoint-minutes", "0.0005", "--resume"]
    log = here / "log"
    start_time = time.monotonic()
    assert finish([*words, "--out", str(here / "reference")], log) is None, log.read_text()
    usual = time.monotonic() - start_time
    reference, killed, number = tensors(here / "reference"), 0, 0
    while killed < count:
        run = here / f"run-{number}"
        number += 1
        for _ in range(rng.randrange(1, 5)):
            if not kill_after(start([*words, "--out", str(run)], log), rng.uniform(0, 1.2 * usual)):
                break
            killed += 1
            kills.faults += [f"training: {fault}" for fault in torn(run)] if run.exists() else []
        fault = finish([*words, "--out", str(run)], log)
        if fault is None:
            found = tensors(run)
            same = found.keys() == reference.keys() and all(
                torch.equal(found[k], reference[k]) for k in reference
            )
            fault = None if same else "a resumed run has other weights"
            fault = fault or next((f"{name} was left" for name in leftovers(run)), None)
        kills.faults += [f"training: {fault}"] if fault else []
        shutil.rmtree(run, ignore_errors=True)
    kills.counts["training"] = killed


def kill_sweeps(kills: Kills, count: int, rng: random.Random, world: fuzz.World, here: Path) -> None:
    """Kill and resume sweeps; each ends with the reference's trials."""

    def words(out: Path, resume: bool = False) -> list[str]:
        if resume:
            return ["sweep", "byol-sem", "--out", str(out), "--resume", "--quiet", "--device", "cpu"]
        grid = ["--grid", "sem.temperature=0.5,1", "--probe-epochs", "1"]
        return [
            "sweep",
            "byol-sem",
            "--data",
            str(world.classes),
            "--out",
            str(out),
            *grid,
            *fuzz.TRAIN.split(),
        ]

    def trials(out: Path) -> list[object]:
        rows = json.loads((out / "sweep.json").read_text())["trials"]
        return [(row["settings"], row.get("accuracy")) for row in rows]

    log, killed, number = here / "log", 0, 0
    begun = time.monotonic()
    assert finish(words(here / "reference"), log) is None, log.read_text()
    usual = time.monotonic() - begun
    while killed < count:
        out = here / f"sweep-{number}"
        number += 1
        resume = False
        for _ in range(rng.randrange(1, 4)):
            # half of the moments are in the first instants, when the folder is being set up
            seconds = rng.uniform(0, rng.choice((0.15, 1.1)) * usual)
            was_killed = kill_after(start(words(out, resume), log), seconds)
            killed += was_killed
            visible = [path.name for path in out.glob("[!.]*") if path.name != "lock"]
            resume = "plan.json" in visible
            if visible and not resume:
                kills.faults.append(f"sweep: a folder with {visible} is neither new nor resumable")
            if not was_killed:
                break
        fault = finish(words(out, resume), log)
        if fault is None and trials(out) != trials(here / "reference"):
            fault = f"a resumed sweep has the trials {trials(out)}"
        kills.faults += [f"sweep: {fault}"] if fault else []
        kills.faults += [f"sweep: {fault}" for fault in torn(out)]
        shutil.rmtree(out, ignore_errors=True)
    kills.counts["sweep"] = killed


def kill_verbs(kills: Kills, count: int, rng: random.Random, world: fuzz.World, here: Path) -> None:
    """Kill each verb that writes; what is visible is complete, and the same command then works."""
    sets, results = here / "sets", Path(__file__).parents[2] / "results"
    sets.mkdir()
    np.save(sets / "fog.npy", np.zeros((10, 16, 16, 3), np.uint8))
    np.save(sets / "labels.npy", np.arange(10) % 2)
    verbs = ("encode", "export", "analyze", "report", "knn", "transfer", "bound", "probe", "finetune", "semi")
    verbs += ("robustness", "compare", "cost", "reproduce", "page", "index", "pack", "predict", "search")
    verbs += ("dedup", "save_pretrained", "csv", "parquet", "pt2", "onnx", "add", "bench", "demo")

    def prepared(verb: str, place: Path) -> list[str]:
        """A command on a copy of the run in a folder of its own."""
        run = str(shutil.copytree(world.run, place / "run"))
        shutil.copytree(world.index, place / "index")
        experiment = ["hard-discretisation", "--only", "tau_d=0.1", "--data", str(world.classes), "--quiet"]
        experiment += ["--epochs", "1", "--batch-size", "20", "--probe-epochs", "1"]
        commands = fuzz.commands(fuzz.World(world.root), place) | {
            "robustness": [run, "--sets", str(sets), "--epochs", "1", "--lrs", "0.1", "--quiet"],
            "reproduce": [*experiment, "--runs", str(place / "runs"), "--results", str(place / "results")],
            "page": ["--results", str(results), "--page", str(place / "page.md")],
            "save_pretrained": [run, str(place / "model")],
            "csv": [run, str(world.photos), "--out", str(place / "x.csv")],
            "parquet": [run, str(world.photos), "--out", str(place / "x.parquet")],
            "pt2": [run, str(place / "x.pt2")],
            "onnx": [run, str(place / "x.onnx")],
            "add": [run, "--out", str(world.index / "photos.index"), "--add", str(world.classes), "--quiet"],
            "bench": ["step", "shapes-byol", "--engines", "eager", "--steps", "5", "--device", "cpu"],
            "demo": ["--out", str(place / "demo"), "--epochs", "1", "--seeds", "1", "--device", "cpu"],
        }
        commands["analyze"] += ["--figures", str(place / "figures")]
        commands["bound"] += ["--figure", str(place / "b.svg")]
        commands["bench"] += ["--json", str(place / "bench.json")]
        commands["dedup"] += ["--json", str(place / "dedup.json")]
        words = [word.replace(str(world.run), run) for word in commands[verb]]
        for folder in (world.index, world.packed):
            words = [word.replace(str(folder), str(place / folder.name)) for word in words]
        return [VERB_OF.get(verb, verb), *words]

    usual: dict[str, float] = {}
    number = 0
    while sum(kills.counts.get(verb, 0) for verb in verbs) < count:
        verb = verbs[number % len(verbs)]
        if verb not in usual:
            begun = time.monotonic()
            fault = finish(prepared(verb, here / verb), here / verb / "log")
            kills.faults += [f"{verb}: {fault}"] if fault else []
            usual[verb] = time.monotonic() - begun
        place, number = here / str(number), number + 1
        words, log = prepared(verb, place), place / "log"
        killed = kill_after(start(words, log), rng.uniform(0, 1.1 * usual[verb]))
        kills.counts[verb] = kills.counts.get(verb, 0) + killed
        kills.faults += [f"{verb}: {fault}" for fault in torn(place)]
        fault = finish(words, log)
        kills.faults += [f"{verb}: {fault}"] if fault else []
        kills.faults += [f"{verb}: {name} was left" for name in leftovers(place)]
        shutil.rmtree(place, ignore_errors=True)


def kill(world: fuzz.World, count: int, seed: int) -> Kills:
    """Kill about ``count`` processes: half of them trainings, a quarter sweeps, a quarter other verbs."""
    rng, kills = random.Random(seed), Kills()
    with tempfile.TemporaryDirectory(dir=world.root) as name:
        for part, share in (
            (kill_training, count // 2),
            (kill_sweeps, count // 4),
            (kill_verbs, count // 4),
        ):
            here = Path(name, part.__name__)
            here.mkdir()
            part(kills, share, rng, world, here)
    return kills
