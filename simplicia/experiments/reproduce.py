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
            session.say(f"{experiment.name}, cell {number} of {len(jobs)}: {name}, seed {job.seed}")
            if (failure := _measure(session, job)) is not None:
                is_known = any(failure == before for _, before in problems[-1:])
                reason = ", for the same reason" if is_known else f": {failure.reason}"
                if failure.kind == "busy":
                    session.say(f"{name} is left to the process that works on it")
                elif failure.kind == "unprepared":
                    session.say(f"{name} is skipped{reason}", "yellow")
                else:
                    session.say(f"{name} failed: {failure.reason}", "yellow")
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
    rows = session.attempt(lambda: MEASURES[job.cell.measure](job, **job.cell.options))
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


def _raise_problems(problems: list[tuple[str, Failure]], count: int) -> None:
    for _, failure in problems:
        if failure.kind == "busy":
            raise Unfinished(failure.reason)
    if problems and [failure.kind for _, failure in problems] == ["unprepared"] * count:
        raise UserError(problems[0][1].reason)
    if problems:
        reasons = "; ".join(f"{name}: {failure.reason}" for name, failure in problems)
        raise Failed(f"{len(problems)} of {count} cells could not be measured: {reasons}")
