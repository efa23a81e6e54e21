"""A run's directory: where it goes, its lock, its log, and what may change when it is resumed."""

import dataclasses
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from simplicia import encoders, errors
from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.distributed import from_leader
from simplicia.errors import Busy, UserError, printable
from simplicia.files import write_text
from simplicia.settings import as_dict, flat, with_changes
from simplicia.train import checkpoint, recipes
from simplicia.train.auto import OPEN, check_processes
from simplicia.train.recipe import Recipe, read_yaml, write_yaml


def resolve(
    recipe: Recipe | str | Path,
    changes: dict[str, Any],
    out: str | Path | None,
    resume: bool,
    processes: int,
    overwrite: bool = False,
) -> tuple[Path, Recipe]:
    """Where a run goes, and its recipe: a new one with changes, or the one to resume."""
    if isinstance(recipe, Path) or str(recipe).endswith((".yaml", ".yml")):
        recipe = recipes.get(str(recipe))
    named = recipes.get(recipe) if isinstance(recipe, str) else recipe
    if resume and overwrite:
        raise UserError("--resume continues a run and --overwrite replaces it; give one of the two")
    path = choose_dir(named.name, out, resume, overwrite)
    if resume and (path / "recipe.yaml").exists():
        resolved = recipe_to_resume(recipe, changes, path)
    else:
        resolved = with_absolute_paths(with_changes(named, changes))
    resolved = resolved.checked()
    for logger in resolved.loggers:
        if importlib.util.find_spec(logger) is None:
            raise UserError(
                f"logger {logger!r} needs its package; pip install {logger}, or give --loggers none"
            )
    if resolved.data == "auto":
        raise UserError(
            f"recipe {resolved.name!r} is for your own images; give --data with a folder or a name"
        )
    check_processes(resolved, processes)
    if resolved.init is not None and checkpoint.latest(path / "checkpoint") is None:
        checkpoint.newest_of(resolved.init)
    return path, resolved


@contextmanager
def claimed(path: Path, recipe: Recipe, resume: bool, overwrite: bool = False) -> Iterator[None]:
    """The directory, locked by process 0, which writes the recipe if the run is new.

    ``overwrite`` removes the run that is there.
    """

    def claim() -> None:
        held.enter_context(lock(path))
        file = path / "recipe.yaml"
        if overwrite:
            remove_run(path)
        if not file.exists():
            write_yaml(recipe, file)
        elif not resume:  # another process put a run there since the folder was chosen
            raise _taken(path)
        else:
            check_same_recipe(path, recipe)
            stored = read_yaml(file)
            if stored.data != recipe.data:  # the images were moved
                write_yaml(dataclasses.replace(stored, data=recipe.data), file)
        (path / "checkpoint").mkdir(exist_ok=True)
        checkpoint.remove_leftovers(path / "checkpoint")

    with ExitStack() as held:
        from_leader(claim)
        yield


# what a run, its measurements and its analyses leave in its folder
CONTENTS = (
    *("checkpoint", checkpoint.FROZEN, "results", "analysis*", "tensorboard", "log.jsonl", "report*.html"),
    "recipe.yaml",
)


def remove_run(path: Path) -> None:
    """Remove a run from its folder, the recipe last; files of other kinds stay."""
    for entry in (entry for pattern in CONTENTS for entry in sorted(path.glob(pattern))):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def choose_dir(name: str, out: str | Path | None, resume: bool, overwrite: bool = False) -> Path:
    """Where the run goes; a folder that holds another run is refused, unless it is to be replaced."""
    if out is None:
        if resume or overwrite:
            raise UserError(f"{'resume' if resume else 'overwrite'} needs the run's folder; give --out")
        check_folder_name(name)
        return next(
            path
            for i in range(1, 10**6)
            if not (path := Path("runs") / (name if i == 1 else f"{name}-{i}")).exists()
        )
    if not str(out):
        raise UserError("out is empty; give a folder")
    folder = Path(out)
    try:
        str(folder).encode()
    except UnicodeEncodeError:  # safetensors reads no such path
        raise UserError(f"out is {str(out)!r}, which is not UTF-8; give another folder") from None
    if folder.is_file():
        raise UserError(f"{folder} is a file; --out takes a folder")
    if overwrite and (folder / "recipe.yaml").is_file():
        return folder
    if not resume and folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise _taken(folder)
    return folder


def check_folder_name(name: str) -> None:
    """A UserError for a recipe's name that would lead out of the folder of all runs, or is no file name."""
    if name in ("", "..") or Path(name).name != name or printable(name) != name:
        raise UserError(f"the recipe's name is {name[:100]!r}, which cannot be that of a folder; give --out")


def _taken(folder: Path) -> UserError:
    what = "a run" if (folder / "recipe.yaml").exists() else "other files"
    replace = "" if errors.at_terminal else "or --overwrite to replace it, "
    hint = f"add --resume to continue it, {replace}or " if what == "a run" else ""
    return UserError(f"{folder} holds {what}; {hint}give another --out")


def recipe_to_resume(recipe: Recipe | str, changes: dict[str, Any], folder: Path) -> Recipe:
    """The recipe of the run in a folder with the changes that a resumed run may have.

    A recipe given by name stands for the run's own settings.
    """
    stored = read_yaml(folder / "recipe.yaml")
    if isinstance(recipe, str):
        if recipe != stored.name:
            raise UserError(
                f"{folder} was trained with recipe {stored.name!r}, not {recipe!r}; give another --out"
            )
        recipe = stored
    kept, given = flat(as_dict(stored)), flat(as_dict(recipe))
    left_open = {name: kept[name] for name, value in OPEN.items() if given[name] == value}
    recipe = with_changes(recipe, left_open)
    asked = with_absolute_paths(with_changes(recipe, changes))
    if differences := _differences(stored, asked, {}):
        hint = "resume with the same settings, or give another --out"
        raise UserError(f"{folder} was trained with {differences[0]}; {hint}")
    return asked


def check_same_recipe(folder: Path, wanted: Recipe) -> None:
    """A UserError unless the run in a folder has a recipe's settings; those left open do not count."""
    differences = _differences(read_yaml(folder / "recipe.yaml"), with_absolute_paths(wanted), OPEN)
    if differences:
        raise UserError(
            f"{folder} was trained with {'; '.join(differences)}; remove it, or give another folder"
        )


def resume_command(folder: Path, recipe: Recipe, processes: int) -> str:
    """The command, or in Python the call, that continues a run."""
    needs_python = recipe.data == datasets.MEMORY or recipe.encoder == encoders.GIVEN
    is_named = recipe.name in recipes.names() and not needs_python
    if errors.at_terminal and not needs_python:
        several = f" --processes {processes}" if processes > 1 else ""
        source = recipe.name if is_named else shlex.quote(str(folder / "recipe.yaml"))
        return f"simplicia pretrain {source} --out {shlex.quote(str(folder))} --resume{several}"
    several = f", processes={processes}" if processes > 1 else ""
    how = f"out={str(folder)!r}, resume=True{several}"
    return (
        f"simplicia.pretrain({recipe.name!r}, {how})"
        if is_named
        else f"the same call of pretrain, with {how}"
    )


def _differences(stored: Recipe, asked: Recipe, ignored: dict[str, Any]) -> list[str]:
    """Settings that make ``asked`` another run than ``stored``, except those with an ``ignored`` value."""
    kept, wanted = flat(as_dict(stored)), flat(as_dict(asked))
    for settings in (kept, wanted):
        if settings["sem.second_temperature"] is None:
            settings["sem.second_temperature"] = settings["sem.temperature"]
    may_change = {*Recipe.MAY_CHANGE, *(name for name, value in ignored.items() if wanted[name] == value)}
    if stored.data not in datasets.names() and not Path(stored.data).exists():
        may_change.add("data")  # the folder was moved: its images are compared when they are read
    return [
        f"{name.replace('options', stored.method, 1)} {kept.get(name)!r}, not {wanted.get(name)!r}"
        for name in sorted((kept.keys() | wanted.keys()) - may_change)
        if kept.get(name) != wanted.get(name)
    ]


def fingerprint(images: ImageSet) -> str:
    """A digest of the images' file names and of every image's sum of pixels, in order.

    Of streamed images it is one of their names and sizes in bytes.
    """
    if images.streamed:
        return images.images.source.digest()
    digest = hashlib.sha256("\0".join(images.files).encode(errors="surrogateescape"))
    for chunk in images.images.split(1024):
        digest.update(chunk.flatten(1).sum(1).numpy().tobytes())
    return digest.hexdigest()


def check_images(folder: Path, state: dict[str, Any], now: dict[str, Any]) -> None:
    """A UserError unless the images are those that the state of a checkpoint describes."""
    if any(state.get(key) != now[key] for key in ("images", "total_steps")):
        raise UserError(
            f"{folder} was trained on {state.get('images')} images for {state.get('total_steps')} "
            f"steps, not {now['images']} and {now['total_steps']}; resume with the same data"
        )
    if state.get("streamed", False) != now["streamed"]:
        before, wanted = (
            ("streamed", "stream") if state.get("streamed") else ("decoded before training", "host")
        )
        raise UserError(
            f"{folder} was trained on images that were {before}, which gives other views; resume with "
            f"--data-device {wanted}"
        )
    for key in ("mean", "std"):
        before, after = state.get(key, now[key]), now[key]
        if any(abs(a - b) > 1e-6 for a, b in zip(before, after, strict=True)):
            shown = [f"({', '.join(f'{x:.6f}' for x in triple)})" for triple in (before, after)]
            raise UserError(
                f"{folder} was trained on other images: the {key} of their colours was {shown[0]}, "
                f"and is {shown[1]}; resume with the same data"
            )
    if state.get("fingerprint", now["fingerprint"]) != now["fingerprint"]:  # 0.1 stored none
        raise UserError(
            f"{folder} was trained on other images, or on these in another order: names or pixels differ; "
            "resume with the same data"
        )


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, so that the run finds its data from anywhere."""
    if not recipe.data:
        raise UserError("data is empty; give a folder of images or a data set's name")
    changes = {}
    if recipe.data not in datasets.names() and Path(recipe.data).is_dir():
        changes["data"] = str(Path(recipe.data).resolve())
    if recipe.encoder_weights not in (None, "pretrained"):
        changes["encoder_weights"] = str(Path(str(recipe.encoder_weights)).expanduser().resolve())
    if recipe.init is not None:
        changes["init"] = str(Path(recipe.init).expanduser().resolve())
    if recipe.data_dir:
        changes["data_dir"] = str(Path(recipe.data_dir).expanduser().resolve())
    return dataclasses.replace(recipe, **changes)  # type: ignore[arg-type]


def lock(folder: Path, name: str = ".lock") -> Any:
    """Lock a folder until the returned file is closed; Busy if another process holds it.

    The lock is a file that is never replaced: processes could otherwise lock the old and the new one.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # a link may have been planted there
    file = os.fdopen(os.open(folder / name, flags, 0o666), "r+")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise Busy(f"{folder} is being trained by another process; give another --out") from None
    except (ImportError, OSError):  # Windows, or a file system without locks
        pass
    return file


class Log:
    """Appends to ``log.jsonl``; drops the lines after ``step``, which a resumed run will write again."""

    def __init__(self, path: Path, step: int, loggers: tuple[str, ...] = (), name: str = ""):
        kept = [line for line in read_log(path) if line["step"] <= step]
        self.warned = {str(line["kind"]) for line in kept if "kind" in line}  # kinds of warnings
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        self.path, self.file = path, path.open("a", buffering=1)
        self.sinks = [_sink(logger, path.parent, name) for logger in loggers]

    def write(self, step: int, **values: Any) -> None:
        with self._naming_the_file():
            self.file.write(json.dumps({"step": step, **values}) + "\n")
        for write, _ in self.sinks:
            write(step, {k: v for k, v in values.items() if isinstance(v, int | float)})

    def close(self) -> None:
        with self._naming_the_file():
            self.file.close()
        for _, close in self.sinks:
            close()

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """The error of a full disk names no file."""
        try:
            yield
        except OSError as error:
            error.filename = str(self.path)
            raise


def read_log(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's log; none if it has no log."""
    lines = []
    for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):  # the torn last line of a killed process
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines


def _sink(logger: str, folder: Path, name: str) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """Two functions of another logger: ``write(step, values)`` and ``close()``."""
    if logger == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder / "tensorboard"))

        def write(step: int, values: dict[str, float]) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, step)

        return write, writer.close
    import wandb

    run = wandb.init(project="simplicia", name=name, dir=str(folder))
    return lambda step, values: run.log(values, step=step), run.finish
