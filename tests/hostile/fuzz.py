"""Fuzzed calls of the command line: arguments, recipes, results, arrays and images, each from its seed.

A call may end with status 0 (done), 1 (training diverged, or a part failed), 2 (wrong input) or 75 (time is
up), and must end with one line if it complains. Anything else is a fault: a traceback, a signal, a hang, a
control character on the terminal, or an executed pickle. ``case(seed)`` repeats one call.
"""

import hashlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import zoo

import simplicia
from simplicia import cli

SECONDS, MEMORY = 60, 12 * 2**30
STATUSES = (0, 1, 2, 75)
CATEGORIES = ("arguments", "recipe", "result", "array", "image", "checkpoint", "log", "sweep", "cache")
CATEGORIES += ("index", "shards", "packed", "classifier", "model")
TRAIN = "--device cpu --encoder tiny --batch-size 4 --image-size 16 --sem.simplices 4 --byol.hidden 8"
TRAIN += " --byol.out 8 --epochs 1 --quiet"


@dataclass
class World:
    """What the calls work on: images, a trained run, and what verbs made of them."""

    root: Path

    @property
    def photos(self) -> Path:
        return self.root / "photos"

    @property
    def classes(self) -> Path:
        return self.root / "classes"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def sweep(self) -> Path:
        return self.root / "sweep"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    @property
    def packed(self) -> Path:
        return self.root / "packed"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def standalone(self) -> Path:
        return self.root / "standalone.safetensors"


def warm_up() -> None:
    """Import once for all forked processes."""
    torch.set_num_threads(1)  # a forked process has no others
    for module in ("optuna", "sqlalchemy", "matplotlib.pyplot", "onnx"):
        importlib.import_module(module)
    for module in (
        "experiments",
        "analyze.study",
        "report.page",
        "codes",
        "data.packing",
        "evaluate.predict",
    ):
        importlib.import_module(f"simplicia.{module}")


def make_world(root: Path) -> World:
    from PIL import Image

    torch.set_num_threads(1)
    world = World(root)
    for i in range(24):
        picture = Image.frombytes("RGB", (20, 20), random.Random(i).randbytes(1200))
        for folder in (world.photos, world.classes / "ab"[i % 2]):
            folder.mkdir(parents=True, exist_ok=True)
            picture.save(folder / f"{i:02d}.png")
    status = cli.main(
        ["pretrain", "byol-sem", "--data", str(world.classes), "--out", str(world.run), *TRAIN.split()]
    )
    status |= cli.main(["knn", str(world.run), "--device", "cpu"])
    status |= cli.main(["transfer", str(world.run), "--device", "cpu", "--quiet"])
    status |= cli.main(["sweep", *commands(world, root)["sweep"]])
    os.environ["SIMPLICIA_CACHE"] = str(world.cache)
    status |= cli.main(["encode", *commands(world, root)["encode"]])
    del os.environ["SIMPLICIA_CACHE"]
    world.index.mkdir()
    status |= cli.main(["index", *commands(world, root)["index"]])
    status |= cli.main(["pack", *commands(world, root)["pack"], "--quiet"])
    status |= cli.main(["probe", *commands(world, root)["probe"]])  # which saves a classifier
    simplicia.load(world.run, "cpu").classifier().save(world.standalone)
    status |= run(["save_pretrained", str(world.run), str(world.model)])
    assert status == 0
    _make_tables(world)
    return world


def _make_tables(world: World) -> None:
    """Images as parquet and arrow files; in another process, since Arrow starts threads."""
    child = os.fork()
    if child == 0:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        rows = [{"bytes": path.read_bytes(), "path": path.name} for path in sorted(world.photos.iterdir())]
        table = pa.table({"image": rows, "label": [i % 2 for i in range(len(rows))]})
        for folder in ("parquet", "arrow"):
            (world.tables / folder).mkdir(parents=True)
        parquet.write_table(table, world.tables / "parquet/train.parquet", row_group_size=10)
        with pa.ipc.new_stream(str(world.tables / "arrow/train.arrow"), table.schema) as stream:
            stream.write_table(table)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def run(words: list[str]) -> int:
    """Run a command; ``save_pretrained`` has no verb."""
    if words[0] != "save_pretrained":
        return cli.main(words)
    if not Path(words[2]).exists():
        simplicia.load(words[1], "cpu").save_pretrained(words[2])
    simplicia.from_pretrained(words[2], "cpu")
    return 0


def commands(world: World, here: Path) -> dict[str, list[str]]:
    """A short valid call of each verb, by its name."""
    run, photos, classes = str(world.run), str(world.photos), str(world.classes)
    index = str(world.index / "photos.index")
    return {
        "pretrain": ["byol-sem", "--data", photos, "--out", str(here / "new"), *TRAIN.split()],
        "probe": [run, "--epochs", "1", "--quiet", "--lrs", "0.1", "--l1", "0", "--temperatures", "1"],
        "knn": [run],
        "transfer": [run, "--quiet", "--regularisers", "2"],
        "finetune": [run, "--quiet", "--steps", "2", "--lrs", "0.1", "--batch-size", "4"],
        "semi": [run, "--quiet", "--epochs", "1", "--lrs", "0.1", "--fraction", "0.5", "--temperatures", "1"],
        "encode": [run, photos, "--out", str(here / "x.npz")],
        "export": [run, str(here / "x.safetensors")],
        "compare": [run, "--json", str(here / "compare.json")],
        "analyze": [run, "--out", str(here / "analysis"), "--images", "20"],
        "report": [run, "--out", str(here / "page.html"), "--images", "20"],
        "bound": ["--vertices", "3", "--json", str(here / "bound.json")],
        "cost": ["cifar10-byol-sem", "--encoder", "tiny", "--json", str(here / "cost.json")],
        "sweep": [
            "byol-sem",
            "--data",
            classes,
            "--out",
            str(here / "sweep"),
            "--grid",
            "sem.temperature=1",
            "--probe-epochs",
            "1",
            *TRAIN.split(),
        ],
        "index": [run, photos, "--out", index, "--quiet"],
        "search": [index, str(world.photos / "03.png"), "--html", str(here / "search.html")],
        "dedup": [index, "--html", str(here / "dedup.html"), "--quiet"],
        "pack": [classes, str(world.packed), "--size", "16"],
        "predict": [run, photos, "--out", str(here / "predictions.csv")],
        "robustness": [run, "--epochs", "1", "--lrs", "0.1", "--quiet"],
        "completion": ["bash"],
        "reproduce": ["--list"],
        "recipes": [],
        "datasets": [],
        "methods": [],
    }


_options: dict[str, list[str]] = {}


def options(verb: str, words: list[str]) -> list[str]:
    """The options that ``--help`` lists."""
    if verb not in _options:
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
            cli.main([verb, *words[:1], "--help"])
        _options[verb] = sorted(
            set(re.findall(r"^\s+(--[a-z0-9.-]+)", text.getvalue(), re.M)) - {"--download"}
        )
    return _options[verb]


def arguments(rng: random.Random, world: World, here: Path) -> list[str]:
    """A call with one to three options replaced, added, removed or doubled."""
    verb = rng.choice(list(commands(world, here)))
    words = commands(world, here)[verb]
    known = options(verb, words)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        pool = zoo.NUMBERS if rng.random() < 0.6 else zoo.STRINGS
        value = str(rng.choice(pool)).replace("\ud800", "\udcff")
        how = rng.random()
        if how < 0.8 and known:
            words += [rng.choice(known), *([value] if rng.random() < 0.9 else [])]
        elif how < 0.9 and words:
            words[rng.randrange(len(words))] = value
        else:
            words.insert(rng.randrange(len(words) + 1), value)
    return [verb if rng.random() < 0.97 else rng.choice(zoo.STRINGS), *words]


def recipe(rng: random.Random, world: World, here: Path) -> list[str]:
    run = world.run
    file = run / "recipe.yaml"
    file.write_text(zoo.changed_yaml(rng, file.read_text()), errors="surrogatepass")
    verbs = {
        "knn": [],
        "compare": [],
        "pretrain": ["--out", str(run), "--resume", "--quiet"],
        "encode": [str(world.photos), "--out", str(here / "x.npz")],
    }
    verb = rng.choice(list(verbs))
    return [verb, "byol-sem" if verb == "pretrain" else str(run), *verbs[verb]]


def result(rng: random.Random, world: World, here: Path) -> list[str]:
    if rng.random() < 0.4:
        source = rng.choice(sorted((Path(__file__).parents[2] / "results" / "paper").glob("*.json")))
        (here / "paper").mkdir()
        (here / "paper" / source.name).write_text(zoo.changed_json(rng, source.read_text()), errors="replace")
        return ["reproduce", "--results", str(here), "--page", str(here / "page.md")]
    run, other = world.run, shutil.copytree(world.run, here / "other")
    file = rng.choice(sorted((run / "results").glob("*.json")))
    file.write_text(zoo.changed_json(rng, file.read_text()), errors="replace")
    return ["compare", str(run), str(other)]


def array(rng: random.Random, world: World, here: Path) -> list[str]:
    corrupted = here / "set"
    corrupted.mkdir()
    (corrupted / "fog.npy").write_bytes(zoo.array(rng, here / "bomb"))
    (corrupted / "labels.npy").write_bytes(zoo.array(rng, here / "bomb"))
    words = ["--sets", str(corrupted), "--epochs", "1", "--lrs", "0.1", "--quiet"]
    return ["robustness", str(world.run), *words]


def image(rng: random.Random, world: World, here: Path) -> list[str]:
    folder = here / "images"
    folder.mkdir()
    for _ in range(rng.randrange(1, 5)):
        name, content = zoo.image(rng)
        (folder / name).write_bytes(content)
    if rng.random() < 0.7:
        return ["encode", str(world.run), str(folder), "--out", str(here / "x.npz")]
    return ["pretrain", "byol-sem", "--data", str(folder), "--out", str(here / "new"), *TRAIN.split()]


def checkpoint(rng: random.Random, world: World, here: Path) -> list[str]:
    run = world.run
    newest = sorted((run / "checkpoint").glob("step-*"))[-1]
    tensors, state = newest / "tensors.safetensors", newest / "state.json"
    how = rng.randrange(3)
    if how == 0:
        tensors.write_bytes(zoo.damaged(rng, tensors.read_bytes()))
    elif how == 1:
        state.write_text(zoo.changed_json(rng, state.read_text()), errors="replace")
    else:  # by somebody who knows of the digest
        content = zoo.tensors(rng, tensors.read_bytes())
        tensors.write_bytes(content)
        digest = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        state.write_text(json.dumps(json.loads(state.read_text()) | digest))
    if rng.random() < 0.5:
        return ["encode", str(run), str(world.photos), "--out", str(here / "x.npz")]
    return ["pretrain", "byol-sem", "--out", str(run), "--resume", "--quiet", "--device", "cpu"]


def log(rng: random.Random, world: World, here: Path) -> list[str]:
    run, file = world.run, world.run / "log.jsonl"
    lines = file.read_text().splitlines()
    lines[rng.randrange(len(lines))] = zoo.changed_json(rng, rng.choice(lines))
    file.write_bytes(zoo.damaged(rng, "\n".join(lines).encode(errors="replace")))
    verbs = {
        "compare": [str(run)],
        "report": [str(run), "--out", str(here / "page.html"), "--images", "20"],
        "pretrain": ["byol-sem", "--out", str(run), "--resume", "--quiet", "--device", "cpu"],
    }
    verb = rng.choice(list(verbs))
    return [verb, *verbs[verb]]


def sweep(rng: random.Random, world: World, here: Path) -> list[str]:
    folder = world.sweep
    (trial,) = folder.glob("trial-*")
    file = rng.choice([folder / "plan.json", folder / "study.db", trial / "results/holdout.json"])
    if file.suffix == ".json":
        file.write_text(zoo.changed_json(rng, file.read_text()), errors="replace")
    else:
        file.write_bytes(zoo.damaged(rng, file.read_bytes()))
    return ["sweep", "byol-sem", "--out", str(folder), "--resume", "--quiet", "--device", "cpu"]


def cache(rng: random.Random, world: World, here: Path) -> list[str]:
    file = rng.choice(sorted(world.cache.iterdir()))
    if file.suffix == ".json":
        file.write_text(zoo.changed_json(rng, file.read_text()), errors="replace")
    else:
        file.write_bytes(zoo.array(rng, here / "bomb"))
    return ["encode", str(world.run), str(world.photos), "--out", str(here / "x.npz")]


def index(rng: random.Random, world: World, here: Path) -> list[str]:
    file, photos = world.index / "photos.index", str(world.photos)
    file.write_bytes(zoo.tensors(rng, file.read_bytes()))
    words = [*commands(world, here)["index"][:1], "--out", str(file), "--quiet"]
    verbs = {
        "search": [str(file), str(world.photos / "03.png"), "--html", str(here / "page.html")],
        "dedup": [str(file), "--html", str(here / "page.html"), "--distance", rng.choice(["0.04", "1"])],
        "index": [*words, *rng.choice([["--add", photos], ["--remove", "03.png"]])],
    }
    verb = rng.choice(list(verbs))
    return [verb, *verbs[verb]]


def shards(rng: random.Random, world: World, here: Path) -> list[str]:
    folder = here / "shards"
    kind = rng.choice(["tar", "parquet", "arrow"])
    if kind == "tar":
        folder.mkdir()
        (folder / "train.tar").write_bytes(zoo.shard(rng, (world.packed / "00000.tar").read_bytes()))
        (folder / "classes.json").write_text(zoo.changed_json(rng, '["a", "b"]'), errors="replace")
    else:
        shutil.copytree(world.tables / kind, folder)
        (file,) = folder.iterdir()
        file.write_bytes(zoo.damaged(rng, file.read_bytes()))
    return _streamed(rng, world, here, folder)


def _streamed(rng: random.Random, world: World, here: Path, folder: Path) -> list[str]:
    """A verb that streams a folder's images."""
    verbs = {
        "encode": [str(world.run), str(folder), "--out", str(here / "x.npz")],
        "pack": [str(folder), str(here / "new"), "--size", "16", "--quiet", "--max-unreadable", "0.5"],
        "pretrain": ["byol-sem", "--data", str(folder), "--out", str(here / "new"), *TRAIN.split()],
    }
    verb = rng.choice(list(verbs))
    return [verb, *verbs[verb]]


def packed(rng: random.Random, world: World, here: Path) -> list[str]:
    file = rng.choice([path for path in sorted(world.packed.iterdir()) if path.suffix])
    if file.suffix == ".json":
        file.write_text(zoo.changed_json(rng, file.read_text()), errors="replace")
    else:
        change = zoo.shard if file.suffix == ".tar" else zoo.tensors
        file.write_bytes(change(rng, file.read_bytes()))
    again = [str(world.packed), "--check"], commands(world, here)["pack"]
    return ["pack", *rng.choice(again)] if rng.random() < 0.5 else _streamed(rng, world, here, world.packed)


def classifier(rng: random.Random, world: World, here: Path) -> list[str]:
    (file,) = (world.run / "results").glob("*.safetensors")
    if rng.random() < 0.5:  # one that holds everything
        file = world.standalone
    file.write_bytes(zoo.tensors(rng, file.read_bytes()))
    return ["predict", str(file), str(world.photos), "--out", str(here / "predictions.csv"), "--quiet"]


def model(rng: random.Random, world: World, here: Path) -> list[str]:
    file = rng.choice([path for path in sorted(world.model.iterdir()) if path.suffix != ".md"])
    if file.suffix == ".safetensors":
        file.write_bytes(zoo.tensors(rng, file.read_bytes()))
    else:
        change = zoo.changed_json if file.suffix == ".json" else zoo.changed_yaml
        file.write_text(change(rng, file.read_text()), errors="replace")
    verbs = {
        "encode": [str(world.model), str(world.photos), "--out", str(here / "x.npz")],
        "export": [str(world.model), str(here / "x.safetensors")],
        "knn": [str(world.model), "--data", str(world.classes)],
    }
    verb = rng.choice(list(verbs))
    return [verb, *verbs[verb]]


MAKERS: dict[str, Callable[[random.Random, World, Path], list[str]]] = {
    "arguments": arguments,
    "recipe": recipe,
    "result": result,
    "array": array,
    "image": image,
    "checkpoint": checkpoint,
    "log": log,
    "sweep": sweep,
    "cache": cache,
    "index": index,
    "shards": shards,
    "packed": packed,
    "classifier": classifier,
    "model": model,
}


@dataclass
class Outcome:
    category: str
    seed: int
    words: list[str]
    status: int
    fault: str | None  # what went wrong, if anything did


def case(seed: int, world: World) -> Outcome:
    """One call, in a process of its own."""
    rng = random.Random(seed)
    category = CATEGORIES[seed % len(CATEGORIES)] if rng.random() < 0.5 else "arguments"
    here = Path(tempfile.mkdtemp(dir=world.root))
    try:
        own = World(here)  # with a copy of the run, so that no call sees what others wrote
        for name in ("run", "index", "packed", *({"sweep", "cache", "model"} & {category})):
            shutil.copytree(world.root / name, here / name)
        for name in ("photos", "classes", "tables"):
            (here / name).symlink_to(world.root / name)
        shutil.copy(world.standalone, own.standalone)
        words = MAKERS[category](rng, own, here)
        output = here / "log"
        child = os.fork()
        if child == 0:
            _run(words, here, output)
        _, code = os.waitpid(child, 0)
        status = os.waitstatus_to_exitcode(code)
        return Outcome(category, seed, words, status, _fault(status, output.read_bytes(), here))
    finally:
        shutil.rmtree(here, ignore_errors=True)


def _run(words: list[str], here: Path, log: Path, seconds: int = SECONDS) -> None:
    """The forked process, which may take some seconds of CPU time: it never returns."""
    status = 99
    try:
        os.chdir(here)
        if (here / "cache").exists():
            os.environ["SIMPLICIA_CACHE"] = str(here / "cache")
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        signal.alarm(5 * seconds)  # more than the limit of CPU seconds: others may use the machine
        output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
        try:
            status = run(words)
        except SystemExit as stop:  # of --help
            status = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _fault(status: int, log: bytes, here: Path) -> str | None:
    text = log.decode(errors="replace")
    if (here / "bomb").exists():
        return "a pickle was executed"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}: {text[-300:]}"
    if status not in STATUSES or "Traceback (most recent call last)" in text:
        return f"status {status}: {text[-1500:]}"
    if status == 2 and not text.rstrip().splitlines()[-1:][0].startswith("simplicia: "):
        return f"the last line is not the complaint: {text[-300:]}"
    if re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text):
        return f"a control character was printed: {text[-300:]!r}"
    if re.search(r"^simplicia: all is well", text, re.M):
        return "a file name forged a line"
    return None


def fuzz(world: World, seeds: range) -> Iterator[Outcome]:
    """Run a call for each seed; faults, and now and then a seed, are printed to standard error."""
    shown = time.monotonic()
    for seed in seeds:
        outcome = case(seed, world)
        if outcome.fault is not None or time.monotonic() > shown + 30:
            shown = time.monotonic()
            print(f"seed {seed}: {outcome.fault or 'no fault'!a}", file=sys.stderr, flush=True)
        yield outcome
