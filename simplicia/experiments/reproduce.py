"""Runs an experiment: trains and measures its cells one after the other and stores each result at once."""

from collections import Counter
from contextlib import suppress
from pathlib import Path

from simplicia.devices import choose
from simplicia.errors import Busy, Diverged, Failed, Unfinished, UserError
from simplicia.experiments import store
from simplicia.experiments.experiment import Experiment
from simplicia.experiments.job import Job, Session
from simplicia.experiments.measures import MEASURES
from simplicia.experiments.runner import Options, TooLong, Unprepared, finished, is_trained, lock, stoppable
from simplicia.train import checkpoint

__all__ = ["Options", "Session", "reproduce"]


def reproduce(experiment: Experiment, options: Options) -> Path:
    """Train and measure the selected cells; returns the file with all results of the experiment.

    Raises Failed at the end if some could not be measured, and Unfinished if there is more to do.
    """
    if options.data == "":
        raise UserError("data is empty; give a folder of images or a data set's name")
    cells = experiment.select(options.only)
    if options.minutes is not None and options.minutes <= options.probe_minutes:
        raise UserError(
            f"minutes is {options.minutes:g}, and no measurement is started with less than "
            f"{options.probe_minutes:g} left: give more --minutes or fewer --probe-minutes"
        )
    session = Session(experiment, options)
    choose(options.device)
    store.check(session.path)
    jobs = [Job(session, cell, seed) for seed in options.seeds for cell in cells]
    if options.no_training:
        jobs = [job for job in jobs if not job.has_run or (job.is_planned and is_trained(job.folder))]
        if not jobs:
            raise UserError(f"no run that {experiment.name} needs is trained to its end in {options.runs}")
    # cells to measure, by run; a run whose epochs follow from a time has one cell
    left = Counter(job.folder for job in jobs if job.has_run and job.is_planned)
    problems: list[tuple[str, Exception]] = []
    with stoppable():
        for number, job in enumerate(jobs, 1):
            name = job.cell.name
            session.say(f"{experiment.name}, cell {number} of {len(jobs)}: {name}, seed {job.seed}")
            if (failure := _measure(session, job)) is not None:
                is_known = bool(problems) and str(failure) == str(problems[-1][1])
                problems.append((name, failure))
                if isinstance(failure, Busy):
                    session.say(f"{name} is left to the process that works on it")
                elif isinstance(failure, Unprepared):
                    reason = ", for the same reason" if is_known else f": {failure}"
                    session.say(f"{name} is skipped{reason}", "yellow")
                else:
                    session.say(f"{name} failed: {failure}", "yellow")
            elif job.has_run:
                left[job.folder] -= job.is_planned
                if options.drop and not left[job.folder]:
                    _drop_weights(session, job.folder)
    for _, failure in problems:
        if isinstance(failure, Busy):
            raise Unfinished(str(failure))
    if problems and [type(failure) for _, failure in problems] == [Unprepared] * len(jobs):
        raise UserError(str(problems[0][1]))
    if problems:
        reasons = "; ".join(f"{name}: {failure}" for name, failure in problems)
        raise Failed(f"{len(problems)} of {len(jobs)} cells could not be measured: {reasons}")
    return session.path


def _measure(session: Session, job: Job) -> Exception | None:
    """Measure a cell and store its results, or why there are none."""
    if not job.is_planned and isinstance(failure := session.attempt(lambda: job.plan), Exception):
        return Unprepared(str(failure))
    if not session.options.retry and (reason := _failed_before(session, job)) is not None:
        return UserError(f"{reason} (it failed before; --retry tries it again)")
    rows = session.attempt(lambda: MEASURES[job.cell.measure](job, **job.cell.options))
    if not isinstance(rows, Exception):
        store.put(session.path, rows)
        return None
    if isinstance(rows, Busy):
        return Busy(f"{job.folder} is being trained or measured by another process")
    if not isinstance(rows, Unprepared):
        minutes = session.options.minutes if isinstance(rows, TooLong) else None
        protocol = "diverged" if isinstance(rows, Diverged) else "failed"
        failed = job.row(protocol=protocol, failed=str(rows), probe=session.probe, minutes=minutes)
        store.put(session.path, [failed])
    return rows


def _failed_before(session: Session, job: Job) -> str | None:
    """Why the run, or this measurement of it, failed; None if it did not, or has more time now."""
    for row in store.read(session.path) if job.has_run else []:
        if row.failed is None or row.run != job.folder.name:
            continue
        if row.protocol == "diverged" and finished(job.folder) is None:
            return row.failed
        minutes = session.options.minutes
        has_more = row.minutes is not None and (minutes is None or minutes > row.minutes)
        if row.cell == job.cell.name and row.probe == session.probe and not has_more:
            return row.failed
    return None


def _drop_weights(session: Session, folder: Path) -> None:
    """Keep everything of a finished run except its weights, unless another process works on it."""
    if finished(folder) is not None:
        session.release()
        with suppress(Busy), lock(folder):
            checkpoint.drop(folder / "checkpoint")
