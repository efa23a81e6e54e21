"""``pretrain`` and ``load``: what most people need of the package."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simplicia import devices
from simplicia.errors import UserError
from simplicia.progress import Progress, say
from simplicia.run import Run, load
from simplicia.train import auto, checkpoint, frozen, run_dir
from simplicia.train.hooks import Checkpoints, ExitWithoutPeers, Logging, OnlineProbes, StopOnRequest
from simplicia.train.recipe import Recipe
from simplicia.train.run_dir import Log
from simplicia.train.trainer import Hook, Trainer

__all__ = ["load", "pretrain"]


def pretrain(
    recipe: Recipe | str,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    processes: int = 1,
    engine: str = "auto",
    download: bool = False,
    quiet: bool = False,
    dry_run: bool = False,
    **more: Any,
) -> Run | None:
    """Train a recipe (or the name of one, with changes) into the folder ``out``, and return the run.

    ``data`` may be the name of a set, a folder, or images: a uint8 tensor or array (N, 3, H, W), an ImageSet.
    ``resume`` goes on from the newest checkpoint of ``out``. ``dry_run`` reports what would happen, and
    returns None. Other keywords are those of ``train_into``, or change settings, such as ``epochs=5``.
    """
    hook_options = {HOOK_OPTIONS[name]: more.pop(name) for name in HOOK_OPTIONS if name in more}
    images, changes = auto.images_from_memory(more)
    path, recipe = run_dir.resolve(recipe, changes, out, resume, processes)
    recipe = frozen.settings(recipe, path)
    fabric = devices.launch(device, processes, recipe.precision)
    quiet = quiet or fabric.global_rank > 0
    images, test_images = auto.training_images(recipe, images, download, quiet)
    recipe, chosen = auto.resolve(recipe, images, fabric.device, processes)
    is_new = checkpoint.latest(path / "checkpoint") is None
    if dry_run and recipe.freeze != "none":
        raise UserError(
            "a dry run writes nothing, and a frozen encoder's features are written; train on fewer images "
            "instead, which prints the rate in images/s"
        )
    init = recipe.init if is_new else None
    encoder = frozen.prepare(recipe, images, path, fabric, quiet) if recipe.freeze != "none" else None
    trainer = Trainer(recipe, images, fabric, engine, test_images, init, encoder)
    say(trainer.describe(chosen), quiet)
    if dry_run:
        say(trainer.dry_run(), quiet)
        return None
    train_into(path, trainer, resume=resume, quiet=quiet, **hook_options)
    return load(path, device=device) if fabric.global_rank == 0 else None


# keywords of ``train_into`` that ``pretrain`` takes, by the names they have now and had before
HOOK_OPTIONS = {name: name for name in ("keep", "deadline", "save_margin", "note", "on_online")}
HOOK_OPTIONS |= {"allow_other_processes": "allow_other_processes"}
HOOK_OPTIONS |= {"until": "deadline", "saving": "save_margin"}


def train_into(
    path: Path,
    trainer: Trainer,
    *,
    resume: bool = False,
    quiet: bool = False,
    keep: int = checkpoint.KEEP,
    deadline: float = math.inf,
    save_margin: float = 0.0,
    note: str | None = None,
    on_online: Callable[[int, dict[str, float]], None] | None = None,
    allow_other_processes: bool = False,
) -> None:
    """Train in a run directory, which is locked meanwhile.

    Ctrl-C, SIGTERM and the ``deadline`` (of ``time.monotonic``) save before they end the training; the
    deadline leaves ``save_margin`` seconds, or more if checkpoints take longer. The newest ``keep``
    checkpoints stay. ``note`` is kept with what is trained now. ``on_online(epoch, accuracies)`` is called
    when online probes were measured; an exception it raises ends the run. ``allow_other_processes``: resume
    with another number of processes, which changes the result.
    """
    path.mkdir(parents=True, exist_ok=True)
    trainer.check_disk(path)
    with run_dir.claimed(path, trainer.recipe, resume, trainer.is_leader):
        writer = checkpoint.Writer(path / "checkpoint", keep)
        trainer.resume_from(path, note, allow_other_processes)
        recipe, done = trainer.recipe, trainer.done
        log = Log(path / "log.jsonl", done, recipe.loggers, recipe.name) if trainer.is_leader else None
        bar = Progress(recipe.name, trainer.total, done, quiet)
        command = run_dir.resume_command(path, recipe, trainer.fabric.world_size)
        hooks: list[Hook] = [
            StopOnRequest(writer, command, deadline, save_margin),
            Logging(log, bar, recipe.log_every, done),
            OnlineProbes(log, bar, recipe.online_every, on_online),
            Checkpoints(writer, recipe.checkpoint_minutes, deadline),
        ]
        if trainer.fabric.world_size > 1:
            hooks.append(ExitWithoutPeers())
        trainer.fit(hooks)
