"""What happens after a training step, each in a class of its own: logging, probes, checkpoints, stopping."""

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from simplicia.errors import Diverged
from simplicia.methods import Output
from simplicia.progress import Progress
from simplicia.train import checkpoint, monitor
from simplicia.train.run_dir import Log
from simplicia.train.trainer import Hook, Trainer

Clock = Callable[[], float]
NAMES = "SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"
STOPPING = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
REQUEUE = getattr(signal, "SIGUSR1", None)  # which SLURM sends before a time limit, if it was asked to


class StopOnRequest(Hook):
    """Asks the trainer to stop on SIGINT, SIGTERM, SIGHUP or SIGUSR1, or shortly before a deadline.

    The deadline leaves ``save_margin`` seconds, or twice as long as the slowest checkpoint took, for the last
    checkpoint. A second signal stops at once, unless the first announced a time limit (SIGUSR1): SLURM's
    SIGTERM may come while the checkpoint is written.
    """

    def __init__(
        self,
        writer: checkpoint.Writer,
        resume: str,
        deadline: float = math.inf,
        save_margin: float = 0.0,
        clock: Clock = time.monotonic,
    ):
        self.writer, self.resume, self.clock = writer, resume, clock
        self.deadline, self.save_margin = deadline, save_margin
        self.received: signal.Signals | None = None
        self.last_step = clock()
        self.previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                # nohup ignores SIGHUP, and training must go on then
                if number != getattr(signal, "SIGHUP", None) or signal.getsignal(number) != signal.SIG_IGN:
                    self.previous[number] = signal.signal(number, self._receive)

    def after_step(self, trainer: Trainer, output: Output) -> None:
        now = self.clock()
        margin = max(self.save_margin, 2 * self.writer.slowest)
        late = now + (now - self.last_step) > self.deadline - margin  # one more step would be too long
        self.last_step = now
        trainer.request_stop(self.received or (0 if late else None), self.resume)

    def close(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> None:
        if self.received is not None and (self.received != REQUEUE or number == signal.SIGINT):
            raise KeyboardInterrupt
        self.received = self.received or signal.Signals(number)


def requeue() -> str:
    """Put the SLURM job of this process back into the queue; returns what came of it."""
    job, array = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_ARRAY_JOB_ID")
    job = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}" if array else job
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"SLURM job {job} was not requeued: {error}"
    return f"SLURM job {job} was " + ("requeued" if done.returncode == 0 else f"not requeued: {done.stderr}")


class Logging(Hook):
    """Logs the loss and health figures every few steps, shows progress, and warns once of each problem.

    The log also has steps 1, 2, 4, 8, … before the first of these, so that slow steps show something soon.
    Its lines are a function of the step, so that a resumed run writes those of an uninterrupted one. What is
    shown follows the clock.
    """

    def __init__(self, log: Log | None, progress: Progress, every: int, start: int = 0):
        self.log, self.progress, self.every = log, progress, every
        self.logged = self.shown = time.monotonic(), start
        self.warned: set[str] = set() if log is None else log.warned

    def after_step(self, trainer: Trainer, output: Output) -> None:
        done, recipe = trainer.done, trainer.recipe
        is_regular = done % self.every == 0 or trainer.is_last
        is_early = done < self.every and done.bit_count() == 1  # a power of two
        if not (is_regular or is_early):
            self._show(trainer, output)
            return
        figures = monitor.health(trainer.method, output)
        speed, self.logged = self._speed(self.logged, trainer)
        stop_if_diverged(trainer, figures["loss"])
        epoch, lr = (done - 1) // trainer.steps_per_epoch, trainer.step.lr.item()
        self._write(done, epoch=epoch, lr=lr, images_per_s=speed, **figures)
        self.shown = self.logged
        self.progress.update(done, f"loss {figures['loss']:.3f}, {speed:,.0f} images/s")
        if not is_regular:  # an untrained network looks like a collapsed one
            return
        images = recipe.micro_batch_size(trainer.fabric.world_size)
        problems = monitor.warnings(trainer.method, figures, done, trainer.total, images)
        for kind, text in problems.items():
            if kind not in self.warned:
                self.warned.add(kind)
                self.progress.say(f"step {done}: {text}", style="yellow")
                self._write(done, warning=text, kind=kind)

    def close(self) -> None:
        self.progress.close()
        if self.log is not None:
            self.log.close()

    def _show(self, trainer: Trainer, output: Output) -> None:
        """Show the step and, every few seconds, the loss, which waits for the device."""
        words = None
        if self.progress.needs_words:
            loss = output.loss.item()
            speed, self.shown = self._speed(self.shown, trainer)
            words = f"loss {loss:.3f}, {speed:,.0f} images/s"
        self.progress.update(trainer.done, words)

    def _speed(self, mark: tuple[float, int], trainer: Trainer) -> tuple[float, tuple[float, int]]:
        """Images per second since a mark, and a mark of now."""
        now = time.monotonic()
        images = (trainer.done - mark[1]) * trainer.recipe.batch_size
        return images / (now - mark[0]), (now, trainer.done)

    def _write(self, step: int, **values: Any) -> None:
        if self.log is not None:
            self.log.write(step, **values)


class OnlineProbes(Hook):
    """Measures the online probes every few epochs; ``on_online(epoch, accuracies)`` may end the run."""

    def __init__(
        self,
        log: Log | None,
        progress: Progress,
        every: int,
        on_online: Callable[[int, dict[str, float]], None] | None = None,
    ):
        self.log, self.progress, self.every, self.on_online = log, progress, every, on_online

    def after_step(self, trainer: Trainer, output: Output) -> None:
        steps = trainer.steps_per_epoch * self.every
        if trainer.probe is None or (trainer.done % steps and not trainer.is_last):
            return
        accuracies = trainer.probe.measure()
        if self.log is not None:
            self.log.write(trainer.done, **accuracies)
        text = ", ".join(f"{name.replace('_', ' ')} {value:.1f} %" for name, value in accuracies.items())
        epoch = trainer.done // trainer.steps_per_epoch
        self.progress.say(f"epoch {epoch}: {text}")
        if self.on_online is not None:
            self.on_online(epoch, accuracies)


class Checkpoints(Hook):
    """Saves every few minutes, and when training ends.

    Training waits while a checkpoint is copied: at most 2 % of the time goes there. None is written shortly
    before the deadline, when the last one follows anyway.
    """

    def __init__(
        self,
        writer: checkpoint.Writer,
        minutes: float,
        deadline: float = math.inf,
        clock: Clock = time.monotonic,
    ):
        self.writer, self.deadline, self.clock = writer, deadline, clock
        self.shortest = self.interval = 60 * minutes
        self.saved = clock()

    def after_step(self, trainer: Trainer, output: Output) -> None:
        due = self.saved + self.interval < self.clock() < self.deadline - self.interval
        if not (trainer.is_ending or due):
            return
        start = self.clock()
        loss = output.loss.item()
        stop_if_diverged(trainer, loss)
        if trainer.is_leader:
            self.writer.save(trainer.done, trainer.step.tensors(), trainer.state(loss))
        if trainer.is_ending:
            self.writer.wait()
        self.saved = self.clock()
        self.interval = max(self.shortest, 50 * (self.saved - start))

    def close(self) -> None:
        self.writer.wait()


def stop_if_diverged(trainer: Trainer, loss: float) -> None:
    """Raise Diverged unless the loss and all weights are finite."""
    if math.isfinite(loss) and trainer.step.finite().item():
        return
    newest = trainer.last_checkpoint()
    kept = f"the last good checkpoint is {newest.name}" if newest else "no checkpoint came before it"
    raise Diverged(
        f"the loss became {loss} at step {trainer.done}; {kept}; a lower --optim.lr, into another --out, "
        "usually helps"
    )
