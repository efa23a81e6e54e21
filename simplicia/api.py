"""``pretrain`` and ``load``: what most people need of the package."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simplicia import devices
from simplicia.distributed import from_leader, watched_peers
from simplicia.errors import Interrupted
from simplicia.progress import Progress, say
from simplicia.run import Run, load
from simplicia.train import auto, checkpoint, run_dir
from simplicia.train.hooks import REQUEUE, Checkpoints, Logging, OnlineProbes, StopOnRequest, requeue
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
    processes: int | None = None,
    engine: str = "auto",
    download: bool = False,
    quiet: bool = False,
    dry_run: bool = False,
    **more: Any,
) -> Run | None:
    """Train a recipe (or the name of one, with changes) into the folder ``out``, and return the run.

    ``data`` may be the name of a set, a folder, or images: a uint8 tensor or array (N, 3, H, W), an ImageSet.
    ``resume`` goes on from the newest checkpoint of ``out``. ``dry_run`` reports what would happen, and
    returns None. torchrun and srun say how many ``processes`` there are; only process 0 returns the run.
    Other keywords are those of ``train_into``, or change settings, such as ``epochs=5``.
    """
    more.pop("allow_other_processes", None)  # any number is allowed since N processes equal one
    hook_options = {HOOK_OPTIONS[name]: more.pop(name) for name in HOOK_OPTIONS if name in more}
    images, changes = auto.images_from_memory(more)
    processes = devices.process_count(processes)
    resolved = run_dir.resolve(recipe, changes, out, resume, processes)
    fabric = devices.launch(device, processes, resolved[1].precision)
    quiet = quiet or fabric.global_rank > 0
    with watched_peers():
        path, recipe = from_leader(lambda: resolved)
        images, test_images = auto.training_images(recipe, images, download, quiet)
        recipe, chosen = auto.resolve(recipe, images, fabric.device, processes)
        is_new = from_leader(lambda: checkpoint.latest(path / "checkpoint") is None)
        trainer = Trainer(recipe, images, fabric, engine, test_images, recipe.init if is_new else None)
        say(trainer.describe(chosen), quiet)
        if dry_run:
            say(trainer.dry_run(), quiet)
            return None
        train_into(path, trainer, resume=resume, quiet=quiet, **hook_options)
    return load(path, device=device) if fabric.global_rank == 0 else None


# keywords of ``train_into`` that ``pretrain`` takes, by the names they have now and had before
HOOK_OPTIONS = {name: name for name in ("keep", "deadline", "save_margin", "note", "on_online")}
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
) -> None:
    """Train in a run directory, which is locked meanwhile.

    Ctrl-C, SIGTERM, SIGUSR1 and the ``deadline`` (of ``time.monotonic``) save before they end the training;
    the deadline leaves ``save_margin`` seconds, or more if checkpoints take longer. SIGUSR1 also requeues a
    SLURM job. The newest ``keep`` checkpoints stay. ``note`` is kept with what is trained now.
    ``on_online(epoch, accuracies)`` is called when online probes were measured; an exception it raises ends
    the run.
    """
    from_leader(lambda: trainer.check_disk(path))
    with run_dir.claimed(path, trainer.recipe, resume):
        writer = checkpoint.Writer(path / "checkpoint", keep)
        trainer.resume_from(path, note)
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
        try:
            trainer.fit(hooks)
        except Interrupted as stop:
            if stop.signal != REQUEUE or "SLURM_JOB_ID" not in os.environ or not trainer.is_leader:
                raise
            raise Interrupted(f"{stop}; {requeue()}", stop.signal) from None
