"""Sweeps: trials listed or drawn by Optuna, stored in SQLite, each an ordinary run.

As in the paper, settings are chosen on a tenth of the training images that no trial trains on; the test
images are not read. Retrain with the chosen settings on all training images.
"""

import json
import shlex
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.devices import choose
from simplicia.errors import Busy, Diverged, Interrupted, UserError, is_disk_error, reason
from simplicia.evaluate.probe import probe
from simplicia.experiments.runner import Options, Runner, stoppable
from simplicia.experiments.sweep_outcome import RETRY_OF, SweepResult, by_place, collect, draw
from simplicia.experiments.sweep_plan import Plan, Range, first_difference, make_plan
from simplicia.provenance import versions
from simplicia.result import Result, write_json
from simplicia.run import Run
from simplicia.settings import as_dict, with_changes
from simplicia.train import checkpoint, recipes, run_dir
from simplicia.train.recipe import Recipe

TRIALS = 12
PLAN, DATABASE = "plan.json", "study.db"


def sweep(
    recipe: Recipe | str,
    *,
    grid: Mapping[str, str | Sequence[Any]] | None = None,
    search: Mapping[str, str | Sequence[Any] | Range] | None = None,
    trials: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    retry: bool = False,
    temperatures: Sequence[float] | None = None,
    probe_epochs: int | None = None,
    prune: bool | None = None,
    device: str = "auto",
    engine: str = "auto",
    download: bool = False,
    quiet: bool = False,
    **changes: Any,
) -> SweepResult:
    """Train a recipe with every combination of ``grid``, or with ``trials`` settings drawn from ``search``.

    A linear probe at the downstream ``temperatures`` measures each trial on held-out training images.
    ``prune`` stops trials whose online probe is below the median of the others (default: in a search).
    ``resume`` continues the sweep in ``out``; options not given again stay as they were. ``retry`` tries its
    failed trials again.

    >>> small = {"data": "digits", "epochs": 1, "batch_size": 200, "image_size": 8, "probe_epochs": 1}
    >>> result = sweep("shapes-byol", grid={"optim.lr": [0.1]}, out="sweeps/lr", quiet=True, **small)
    >>> result["best"]["settings"]
    {'optim.lr': 0.1}
    """
    try:
        import optuna
    except ImportError as error:
        raise UserError("sweeps need Optuna; pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = recipe if isinstance(recipe, str) else recipe.name
    folder = _folder(name, out, resume)
    asked: dict[str, Any] = {"grid": grid, "search": search, "temperatures": temperatures}
    asked |= {"probe_epochs": probe_epochs, "prune": prune}
    if not resume:
        make_plan(recipe, changes, asked)  # reports wrong input before anything is created
    folder.mkdir(parents=True, exist_ok=True)
    with run_dir.lock(folder, "lock"):
        _folder(name, out, resume)  # another process may have begun a sweep meanwhile
        stored, count = _stored_plan(folder) if resume else (None, None)
        plan = make_plan(recipe, changes, asked, stored)
        if stored is not None and (difference := first_difference(plan, stored, name)) is not None:
            raise UserError(f"{folder} was begun with {difference}; give the same, or another --out")
        train_images, validation_images = map(len, _split(plan.recipe, download))
        about: dict[str, Any] = {"train_images": train_images, "validation_images": validation_images}
        about |= versions(choose(device))
        # a resumed sweep keeps its number of trials unless another one is given
        points = plan.points()
        count = trials or count or (TRIALS if plan.search else len(points))
        count = count if plan.search else min(count, len(points))
        # before the database: a sweep killed at any moment either has its plan or counts as new
        write_json(folder / PLAN, {"plan": as_dict(plan), "trials": count})
        study = _study(folder)
        runner = Runner(Options(device, engine, keep=checkpoint.KEEP, quiet=quiet))
        path, again = folder, "the same command and --resume"
        if plan.recipe.name in recipes.names():
            again = f"simplicia sweep {plan.recipe.name} --out {shlex.quote(str(folder))} --resume"
        try:
            with stoppable():
                for place, trial in _trials(study, plan, count, retry):
                    path = folder / f"trial-{place:04d}"
                    settings = _suggest(trial, plan, place)
                    _run(runner, trial, plan, settings, path, f"trial {place} ({place + 1} of {count})")
                    collect(study, plan, about).write(folder / "sweep.json")
            result = collect(study, plan, about)
            result.write(folder / "sweep.json")
            if result.best is not None:
                draw(result, folder / "sweep.svg")
        except Interrupted as stop:
            raise Interrupted(f"stopped in {path.name}; continue with: {again}", stop.signal) from stop
        except Exception as error:
            if not is_disk_error(error):
                if any("optuna" in Path(frame.filename).parts for frame in extract_tb(error.__traceback__)):
                    raise _unusable(folder, error) from error
                raise
            reason = getattr(error.__cause__, "orig", error)  # of the database: what SQLite says
            raise UserError(
                f"stopped in {path.name}: {reason}; make room, then continue with: {again}"
            ) from error
    if result.best is None:
        reasons = [trial.reason for trial in result.trials if trial.reason]
        raise UserError(f"no trial of {folder} finished; the first says: {(reasons or ['nothing'])[0]}")
    return result


def _trials(study: Any, plan: Plan, count: int, retry: bool) -> Iterator[tuple[int, Any]]:
    """The trials to run, with their places in the sweep: first those that were killed, then new ones."""
    from optuna.pruners import MedianPruner, NopPruner
    from optuna.trial import Trial, TrialState, create_trial

    for point in plan.points() if plan.grid else []:
        study.enqueue_trial(point, skip_if_exists=True)
    for place, failed in by_place(study).items() if retry else []:
        if failed.state == TrialState.FAIL:  # Optuna changes no finished trial: a copy runs in its place
            names = ("params", "distributions", "intermediate_values")
            copied = {name: getattr(failed, name) for name in names}
            study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs={RETRY_OF: place}, **copied))
    warm_up = plan.recipe.epochs // 3
    study.pruner = MedianPruner(n_startup_trials=4, n_warmup_steps=warm_up) if plan.prune else NopPruner()
    while True:
        known = by_place(study)
        killed = [t for t in known.values() if t.state == TrialState.RUNNING]
        started = [t for t in known.values() if t.state != TrialState.WAITING]
        if not killed and len(started) >= count:
            return
        trial = Trial(study, killed[0]._trial_id) if killed else study.ask()
        yield next(place for place, t in by_place(study).items() if t.number == trial.number), trial


def _run(runner: Runner, trial: Any, plan: Plan, settings: dict[str, Any], path: Path, title: str) -> None:
    """Train a trial, measure it on held-out training images unless it is pruned, and report it to Optuna."""
    from optuna import TrialPruned
    from optuna.trial import TrialState

    start, recipe = time.monotonic(), with_changes(plan.recipe, settings)
    known = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
    words = [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in settings.items()]
    runner.say(f"{title}: {', '.join(words) or 'the recipe'}")

    def watch(epoch: int, accuracies: dict[str, float]) -> None:
        online = accuracies.get("online_sem_accuracy", accuracies["online_encoder_accuracy"])
        if epoch not in known:
            trial.report(online, epoch)
        if plan.prune and epoch < recipe.epochs and trial.should_prune():
            trial.set_user_attr("seconds", time.monotonic() - start)
            raise TrialPruned(f"stopped after epoch {epoch}, at {online:.1f} % online")

    def measure(run: Run) -> Result:
        result = probe(run, *_split(run.recipe), settings=plan.probe)
        return result.replace(protocol="offline linear probe, on held-out training images")

    asked = vars(plan.probe)
    measured = runner.attempt(
        lambda: runner.once(path, recipe, "holdout", asked, measure, on_online=watch), (Exception,)
    )
    if isinstance(measured, Busy):
        raise measured
    if isinstance(measured, TrialPruned):
        trial.study.tell(trial, state=TrialState.PRUNED)
        runner.say(f"{title}: {measured}")
        return
    if isinstance(measured, Exception):
        is_sentence = isinstance(measured, UserError | Diverged)
        reason = str(measured) if is_sentence else f"{type(measured).__name__}: {measured}"
        trial.set_user_attr("reason", " ".join(reason.split()))
        trial.study.tell(trial, state=TrialState.FAIL)
        runner.say(f"{title}: failed: {reason}")
        return
    rows, keys = measured["per_temperature"] or [measured], ("temperature", "accuracy", "standard_error")
    pretrain_seconds = checkpoint.state_of(path)["seconds"]
    for key, value in {
        "downstream_temperature": measured.get("temperature"),
        "standard_error": measured["standard_error"],
        "layer": measured["layer"],
        "per_temperature": [{key: row.get(key) for key in keys} for row in rows],
        "pretrain_seconds": pretrain_seconds,
        "seconds": pretrain_seconds + measured["seconds"],
    }.items():
        trial.set_user_attr(key, value)
    trial.study.tell(trial, measured["accuracy"])
    runner.say(f"{title}: {measured['accuracy']:.2f} % on held-out images")


def _suggest(trial: Any, plan: Plan, place: int) -> dict[str, Any]:
    """The settings of a trial; one that was killed keeps those it has."""
    from optuna.samplers import TPESampler

    settings: dict[str, Any] = {}
    for name, values in plan.settings.items():
        # a sampler for each value: a sweep killed between two of them draws what it would have drawn
        seed = zlib.crc32(f"{plan.recipe.seed} {place} {name}".encode())
        trial.study.sampler = TPESampler(seed=seed, n_startup_trials=5)
        if isinstance(values, Range):
            number, suggest = (int, trial.suggest_int) if values.integer else (float, trial.suggest_float)
            settings[name] = suggest(name, number(values.low), number(values.high), log=values.log)
        else:
            settings[name] = trial.suggest_categorical(name, values)
    return settings


def _split(recipe: Recipe, download: bool = False) -> tuple[ImageSet, ImageSet]:
    """The training images of a trial, and those it is measured on."""
    size = datasets.decoded_size(recipe.data, recipe.actual_decode_size)
    train = datasets.load(recipe.data, "train", recipe.data_dir, download, size)
    return datasets.split(train, recipe.holdout)


def _folder(name: str, out: str | Path | None, resume: bool) -> Path:
    """Where a sweep goes; a UserError if it cannot go there.

    A lock or hidden files, such as temporary ones, are what a killed process left: there is no sweep yet.
    """
    if out is None and resume:
        raise UserError("resume needs the sweep's folder; give --out")
    if out is None:
        run_dir.check_folder_name(name)
    folder = Path(f"sweeps/{name}" if out is None else out)
    if folder.is_file():
        raise UserError(f"{folder} is a file; --out takes a folder")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    files = {file for file in names if not file.startswith(".")} - {"lock"}
    is_sweep = bool(files & {PLAN, DATABASE})
    if files and not is_sweep:
        raise UserError(f"{folder} holds other files; give another --out")
    if is_sweep and not resume:
        raise UserError(f"{folder} holds a sweep; add --resume to continue it, or give another --out")
    if resume and not is_sweep:
        raise UserError(f"there is no sweep in {folder}; --resume continues one, and starts none")
    return folder


def _stored_plan(folder: Path) -> tuple[Plan, int | None]:
    """The plan of the sweep in a folder, and its number of trials; version 0.1 kept them in the database."""
    file = folder / PLAN
    if not file.exists():
        values = _study(folder).user_attrs
        if "plan" not in values:
            raise UserError(
                f"{folder} has no plan: its sweep was stopped before it was stored; remove {folder}, and "
                "give the sweep's first command again"
            )
        return Plan.from_dict(values["plan"]), values.get("trials")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return Plan.from_dict(values["plan"]), int(values["trials"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{file} cannot be read as the plan of a sweep: {error}") from error


def _study(folder: Path) -> Any:
    """Optuna's study in a folder, created if there is none."""
    import optuna

    storage = f"sqlite:///{(folder / DATABASE).resolve()}"
    try:
        return optuna.create_study(
            storage=storage, study_name="sweep", direction="maximize", load_if_exists=True
        )
    except Exception as error:  # damaged bytes raise whatever they meet
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: Exception) -> UserError:
    """What SQLite or Optuna says of a damaged database."""
    cause = getattr(error, "orig", None) or getattr(error.__cause__, "orig", None) or error
    return UserError(f"the sweep's database {folder / DATABASE} cannot be used: {reason(cause)}")
