"""Runs an experiment: trains and measures its cells one after the other and stores each result at once."""

from collections import Counter
from contextlib import suppress
from pathlib import Path

from simplicia.devices import choose
from simplicia.errors import Busy, Failed, Unfinished, UserError
from simplicia.experiments import store
from simplicia.experiments.clock import stoppable
from simplicia.experiments.experiment import Experiment
from simplicia.experiments.job import Job, Options, Session
from simplicia.experiments.measures import MEASURES
from simplicia.experiments.runner import Failure, finished

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
        jobs = [job for job in jobs if job.is_trained]
        if not jobs:
            raise UserError(f"no run that {experiment.name} needs is trained to its end in {options.runs}")
    left = Counter(job.folder for job in jobs if job.plan is not None)  # cells to measure, by run
    problems: list[tuple[str, Failure]] = []
    with stoppable():
        for number, job in enumerate(jobs, 1):
            name = job.cell.name
            session.runner.say(f"{experiment.name}, cell {number} of {len(jobs)}: {name}, seed {job.seed}")
            failure = _measure(session, job)
            if failure is not None:
                _report(session, name, failure, repeated=bool(problems) and problems[-1][1] == failure)
                problems.append((name, failure))
            elif job.plan is not None:
                left[job.folder] -= 1
                if options.drop and not left[job.folder]:
                    with suppress(Busy):  # another process works on it
                        job.drop_weights()
    _raise_problems(problems, len(jobs))
    return session.path


def _measure(session: Session, job: Job) -> Failure | None:
    """Measure a cell and store its results, or why there are none."""
    if not session.options.retry and (reason := _failed_before(session, job)) is not None:
        return Failure("failed", f"{reason} (it failed before; --retry tries it again)")
    rows = session.runner.attempt(lambda: MEASURES[job.cell.measure](job, **job.cell.options))
    if not isinstance(rows, Failure):
        store.put(session.path, rows)
        return None
    if rows.kind == "busy":
        return Failure("busy", f"{job.folder} is being trained or measured by another process")
    if rows.kind != "unprepared":
        minutes = session.options.minutes if rows.kind == "too long" else None
        protocol = "diverged" if rows.kind == "diverged" else "failed"
        failed = job.row(protocol=protocol, failed=rows.reason, probe=session.probe, minutes=minutes)
        store.put(session.path, [failed])
    return rows


def _failed_before(session: Session, job: Job) -> str | None:
    """Why the run, or this measurement of it, failed; None if it did not, or has more time now."""
    for row in store.read(session.path) if job.plan is not None else []:
        if row.failed is None or row.run != job.folder.name:
            continue
        if row.protocol == "diverged" and finished(job.folder) is None:
            return row.failed
        minutes = session.options.minutes
        has_more = row.minutes is not None and (minutes is None or minutes > row.minutes)
        if row.cell == job.cell.name and row.probe == session.probe and not has_more:
            return row.failed
    return None


def _report(session: Session, name: str, failure: Failure, repeated: bool) -> None:
    say = session.runner.say
    if failure.kind == "busy":
        say(f"{name} is left to the process that works on it")
    elif failure.kind == "unprepared":
        say(f"{name} is skipped{', for the same reason' if repeated else f': {failure.reason}'}", "yellow")
    else:
        say(f"{name} failed: {failure.reason}", "yellow")


def _raise_problems(problems: list[tuple[str, Failure]], count: int) -> None:
    for _, failure in problems:
        if failure.kind == "busy":
            raise Unfinished(failure.reason)
    unprepared = [failure for _, failure in problems if failure.kind == "unprepared"]
    if problems and len(unprepared) == count:
        raise UserError(unprepared[0].reason)
    if problems:
        reasons = "; ".join(f"{name}: {failure.reason}" for name, failure in problems)
        raise Failed(f"{len(problems)} of {count} cells could not be measured: {reasons}")
