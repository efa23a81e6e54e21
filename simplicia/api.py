"""``pretrain``, ``dry_run`` and ``load``: what most people need of the package."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simplicia import devices, frozen
from simplicia.distributed import from_leader, watched_peers
from simplicia.errors import Interrupted, UserError, spoken
from simplicia.progress import Progress, say
from simplicia.run import Run, load, load_classifier
from simplicia.settings import flat
from simplicia.train import auto, checkpoint, recipes, run_dir
from simplicia.train.hooks import REQUEUE, Checkpoints, Logging, OnlineProbes, StopOnRequest, requeue
from simplicia.train.recipe import Recipe
from simplicia.train.run_dir import Log
from simplicia.train.trainer import Hook, Plan, Trainer

__all__ = ["Plan", "dry_run", "load", "load_classifier", "pretrain"]


def pretrain(
    recipe: Recipe | str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    processes: int | None = None,
    engine: str = "auto",
    download: bool = False,
    quiet: bool = False,
    **more: Any,
) -> Run:
    """Train a recipe (a name, or the path of a ``recipe.yaml``) into the folder ``out``, and return the run.

    ``resume`` goes on from the newest checkpoint of ``out``; ``overwrite`` replaces the run there. torchrun
    and srun say how many ``processes`` there are. Other keywords:

    * settings have the names of the command line: ``epochs=5``, ``sem={"vertices": 13}`` or, the same,
      ``**{"sem.vertices": 13}``; a method's options have its name: ``byol={"hidden": 64}``.
    * ``data`` is the name of a set or a folder; or images: arrays or tensors, NCHW or NHWC, grey or RGB; a
      list of paths or PIL images; a data set of torch, torchvision or Hugging Face; an ImageSet.
    * ``encoder`` is a name, or an ``nn.Module`` from images (N, 3, H, W) to (N, features). A copy of it is
      trained: ``run.encoder``.
    * ``keep`` is the number of checkpoints to keep, ``deadline`` the ``time.monotonic()`` at which to save
      and stop, and ``note`` a text to keep with the run. ``on_online(epoch, accuracies)`` is called when
      online probes were measured.

    >>> import numpy as np
    >>> images = np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), dtype=np.uint8)
    >>> run = pretrain("byol-sem", data=images, epochs=1, sem={"simplices": 8}, out="runs/mine", quiet=True)
    >>> run.finished, run.encode(images[:5]).shape
    (True, torch.Size([5, 104]))
    """
    where: dict[str, Any] = {"device": device, "processes": processes, "engine": engine}
    where |= {"download": download, "quiet": quiet}
    if more.pop("dry_run", False):  # version 0.1 had no function for it
        dry_run(recipe, out=out, resume=resume, **where, **more)
        return None  # type: ignore[return-value]
    hook_options = {HOOK_OPTIONS[name]: more.pop(name) for name in HOOK_OPTIONS if name in more}
    with _prepared(recipe, out, resume, overwrite, more, **where) as (path, trainer, encoder):
        train_into(path, trainer, resume=resume, overwrite=overwrite, quiet=quiet, **hook_options)
    if trainer.is_leader:
        return load(path, device, encoder)
    return Run(path, trainer.recipe, trainer.method, trainer.state(math.nan) | {"step": trainer.done})


def dry_run(
    recipe: Recipe | str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    processes: int | None = None,
    engine: str = "auto",
    download: bool = False,
    quiet: bool = False,
    **more: Any,
) -> Plan:
    """Take three steps of what ``pretrain`` would do, and return (and print) what it would take.

    >>> plan = dry_run("shapes-byol-sem", epochs=1, image_size=16, quiet=True)
    >>> plan.steps, plan.recipe.encoder
    (78, 'tiny')
    """
    more = {name: value for name, value in more.items() if name not in HOOK_OPTIONS}
    where = {"device": device, "processes": processes, "engine": engine, "download": download}
    with _prepared(recipe, out, resume, False, more, quiet=quiet, is_dry=True, **where) as (_, trainer, _):
        plan = trainer.dry_run()
        say(str(plan).splitlines(), quiet or not trainer.is_leader)
        return plan


@contextmanager
def _prepared(
    recipe: Recipe | str | Path,
    out: str | Path | None,
    resume: bool,
    overwrite: bool,
    more: dict[str, Any],
    *,
    device: Any,
    processes: Any,
    engine: Any,
    download: Any,
    quiet: Any,
    is_dry: bool = False,
) -> Iterator[tuple[Path, Trainer, Any]]:
    """Where a run goes, its trainer, and the encoder that Python gave; other processes are watched."""
    more.pop("allow_other_processes", None)  # any number is allowed since N processes equal one
    data, encoder, changes = auto.from_python(more)
    processes = devices.process_count(processes)
    path, resolved = run_dir.resolve(recipe, changes, out, resume, processes, overwrite)
    chosen = path, frozen.settings(resolved, path, overwrite, processes)
    if is_dry and resolved.freeze != "none":
        raise UserError(
            "a dry run writes nothing, and a frozen encoder's features are written; train on fewer images "
            "instead, which prints the rate in images/s"
        )
    fabric = devices.launch(device, processes, resolved.precision)
    quiet = quiet or fabric.global_rank > 0
    with watched_peers():
        path, resolved = from_leader(lambda: chosen)
        images, test_images = auto.training_images(resolved, data, download, quiet)
        resolved, notes = auto.resolve(resolved, images, fabric.device, processes)
        is_new = overwrite or from_leader(lambda: checkpoint.latest(path / "checkpoint") is None)
        init = resolved.init if is_new else None
        features = None
        if resolved.freeze != "none":
            features = frozen.prepare(resolved, images, path, is_new, fabric.device, quiet)
        trainer = Trainer(resolved, images, fabric, engine, test_images, init, encoder, features)
        idle = recipes.without_effect(resolved, flat(changes))
        say([*trainer.describe(notes), *([] if idle is None else [spoken(idle)])], quiet)
        yield path, trainer, encoder


# keywords of ``train_into`` that ``pretrain`` takes, by the names they have now and had before
HOOK_OPTIONS = {name: name for name in ("keep", "deadline", "save_margin", "note", "on_online")}
HOOK_OPTIONS |= {"until": "deadline", "saving": "save_margin"}


def train_into(
    path: Path,
    trainer: Trainer,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    keep: int = checkpoint.KEEP,
    deadline: float = math.inf,
    save_margin: float = 0.0,
    note: str | None = None,
    on_online: Callable[[int, dict[str, float]], None] | None = None,
) -> None:
    """Train in a run directory, which is locked meanwhile.

    Ctrl-C, SIGTERM, SIGUSR1 and the ``deadline`` (of ``time.monotonic``) save before they end the training;
    the deadline leaves ``save_margin`` seconds, or more if checkpoints take longer. SIGUSR1 also requeues a
    SLURM job. The newest ``keep`` checkpoints stay. ``note`` is kept with what is trained now.
    ``on_online(epoch, accuracies)`` is called when online probes were measured; an exception it raises ends
    the run.

    >>> run = pretrain("shapes-byol", epochs=1, image_size=8, out="runs/kept", keep=1, quiet=True)
    """
    from_leader(lambda: trainer.check_disk(path))
    with run_dir.claimed(path, trainer.recipe, resume, overwrite):
        writer = checkpoint.Writer(path / "checkpoint", keep)
        trainer.resume_from(path, note)
        recipe, done = trainer.recipe, trainer.done
        log = Log(path / "log.jsonl", done, recipe.loggers, recipe.name) if trainer.is_leader else None
        command = run_dir.resume_command(path, recipe, trainer.fabric.world_size)
        stop = StopOnRequest(writer, command, deadline, save_margin)  # before the bar says that training runs
        bar = Progress(recipe.name, trainer.total, done, quiet or not trainer.is_leader)
        hooks: list[Hook] = [
            stop,
            Logging(log, bar, recipe.log_every, done),
            OnlineProbes(log, bar, recipe.online_every, on_online),
            Checkpoints(writer, recipe.checkpoint_minutes, deadline),
        ]
        try:
            trainer.fit(hooks)
        except Interrupted as stopped:
            if stopped.signal != REQUEUE or "SLURM_JOB_ID" not in os.environ or not trainer.is_leader:
                raise
            raise Interrupted(f"{stopped}; {requeue()}", stopped.signal) from None
