"""The trials of a sweep: drawn or listed by Optuna, kept in SQLite, each an ordinary run's folder.

What the paper does: settings are chosen on a tenth of the training images, which no trial trains on; the test
images are not looked at. Who has chosen trains again on all of them.
"""

import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from simplicia.api import pretrain
from simplicia.data import datasets
from simplicia.devices import choose
from simplicia.errors import Diverged, Interrupted, UserError
from simplicia.evaluate.probe import ProbeSettings, probe
from simplicia.experiments import sweep_outcome as outcome
from simplicia.experiments.sweep_plan import Plan, Range, from_stored, read_grid, read_search
from simplicia.progress import Progress
from simplicia.provenance import versions
from simplicia.settings import as_dict, with_changes
from simplicia.train import checkpoint, recipes
from simplicia.train import run_dir as place
from simplicia.train.recipe import Recipe, read_yaml

HOLDOUT = 0.1
TRIALS = 12
PROBE_EPOCHS = 30  # to rank trials; a final probe trains longer
DATABASE = "study.db"


def sweep(
    recipe: Recipe | str,
    *,
    grid: Mapping[str, str | Sequence[Any]] | None = None,
    search: Mapping[str, str | Sequence[Any] | Range] | None = None,
    trials: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    temperatures: Sequence[float] | None = None,
    probe_epochs: int | None = None,
    prune: bool | None = None,
    device: str = "auto",
    engine: str = "auto",
    download: bool = False,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Train a recipe with every combination of ``grid``, or with ``trials`` settings drawn from ``search``.

    Each trial is measured by a linear probe at the downstream ``temperatures``, on held-out training images.
    ``prune`` stops trials whose online probe is below the median of the others (default: of a search).
    ``resume`` goes on with the sweep in ``out``; what is not given again is as it was.
    """
    optuna = _optuna()
    name = recipe if isinstance(recipe, str) else recipe.name
    folder = _folder(name, out, resume)
    asked: dict[str, Any] = {
        "grid": grid,
        "search": search,
        "temperatures": temperatures,
        "probe_epochs": probe_epochs,
    }
    fresh = not (folder / DATABASE).exists()
    plan = _plan(recipe, changes, prune=prune, **asked) if fresh else None  # checked before a folder is made
    folder.mkdir(parents=True, exist_ok=True)
    lock = place.lock(folder, "lock")
    try:
        study = _study(optuna, folder)
        stored = study.user_attrs.get("plan")
        if stored is None:
            plan = plan or _plan(recipe, changes, prune=prune, **asked)
            study.set_user_attr("plan", plan.as_dict())
        else:
            plan = _same(from_stored(stored), recipe, changes, folder, prune=prune, **asked)
        images = _training_images(plan.recipe, download)
        return _go(optuna, study, plan, folder, trials, images, device, engine, quiet)
    finally:
        lock.close()


def _go(
    optuna: Any,
    study: Any,
    plan: Plan,
    folder: Path,
    trials: int | None,
    images: tuple[int, int],
    device: str,
    engine: str,
    quiet: bool,
) -> dict[str, Any]:
    """All trials, and what they gave; the tables are written anew after each, the figure at the end."""
    from optuna.trial import Trial, TrialState

    points = plan.points()
    for point in points if plan.grid else []:
        study.enqueue_trial(point, skip_if_exists=True)
    # of a sweep that is taken up again what it was begun with, unless another number is asked for
    count = trials or study.user_attrs.get("trials") or (TRIALS if plan.search else len(points))
    study.set_user_attr("trials", count)
    if not plan.search:
        count = min(count, len(points))
    seed = plan.recipe.seed
    median = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=plan.recipe.epochs // 3)
    study.pruner = median if plan.prune else optuna.pruners.NopPruner()
    say = Progress("", 1, 0, quiet).say
    facts = {"train_images": images[0], "validation_images": images[1], **versions(choose(device))}

    def write() -> dict[str, Any]:
        found = outcome.summary(study, plan) | facts
        outcome.write(found, folder)
        return found

    while True:
        known = study.get_trials(deepcopy=False)
        broken = [t for t in known if t.state == TrialState.RUNNING]  # of a process that was killed
        begun = [t for t in known if t.state != TrialState.WAITING]
        if not broken and len(begun) >= count:
            break
        number = broken[0].number if broken else len(begun)
        # a sampler for each trial, so that a sweep taken up again draws what it would have drawn
        study.sampler = optuna.samplers.TPESampler(seed=seed * 100_003 + number, n_startup_trials=5)
        trial = Trial(study, broken[0]._trial_id) if broken else study.ask()
        path = folder / f"trial-{trial.number:04d}"
        try:
            settings = _suggest(trial, plan)
            words = ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in settings.items()
            )
            say(f"trial {trial.number + 1} of {count}: {words or 'the recipe'}")
            value = _run(optuna, trial, plan, settings, path, device, engine, quiet)
            study.tell(trial, value)
            say(f"trial {trial.number + 1} of {count}: {value:.2f} % on held-out images")
        except optuna.TrialPruned as pruned:
            study.tell(trial, state=TrialState.PRUNED)
            say(f"trial {trial.number + 1} of {count}: {pruned}")
        except (Diverged, UserError, torch.OutOfMemoryError) as error:
            trial.set_user_attr("reason", str(error))
            study.tell(trial, state=TrialState.FAIL)
            say(f"trial {trial.number + 1} of {count}: failed: {error}")
        except Interrupted as stop:
            again = f"simplicia sweep {plan.recipe.name} --out {shlex.quote(str(folder))} --resume"
            raise Interrupted(f"stopped in {path.name}; go on with: {again}", stop.signal) from stop
        torch.cuda.empty_cache()  # a trial too large for the GPU leaves the next one all of it
        write()
    found = write()
    if found["best"] is None:
        reasons = [row["reason"] for row in found["trials"] if row["reason"]]
        raise UserError(
            f"no trial of {folder} came to its end; the first says: {(reasons or ['nothing'])[0]}"
        )
    outcome.draw(found, folder / "sweep.svg")
    return found


def _run(
    optuna: Any,
    trial: Any,
    plan: Plan,
    settings: dict[str, Any],
    path: Path,
    device: str,
    engine: str,
    quiet: bool,
) -> float:
    """Train and measure a trial; its accuracy on the held-out images."""
    start = time.monotonic()
    if checkpoint.latest(path / "checkpoint") is None:
        shutil.rmtree(path, ignore_errors=True)  # killed before there was anything to go on from
        recipe = with_changes(plan.recipe, settings)
    else:
        recipe = read_yaml(path / "recipe.yaml")
    reported = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values

    def watch(epoch: int, accuracies: dict[str, float]) -> None:
        online = accuracies.get("online_sem_accuracy", accuracies["online_encoder_accuracy"])
        if epoch not in reported:
            trial.report(online, epoch)
        if plan.prune and epoch < recipe.epochs and trial.should_prune():
            trial.set_user_attr("seconds", time.monotonic() - start)
            raise optuna.TrialPruned(f"stopped after epoch {epoch}, at {online:.1f} % online")

    run = pretrain(recipe, out=path, resume=True, device=device, engine=engine, quiet=quiet, on_online=watch)
    assert run is not None
    size = datasets.decoded_size(run.recipe.data, run.recipe.actual_decode_size)
    train = datasets.load(run.recipe.data, "train", run.recipe.data_dir, size=size)
    fit_on, held = datasets.split(train, run.recipe.holdout)
    probes = ProbeSettings(temperatures=plan.temperatures, epochs=plan.probe_epochs)
    found = probe(run, fit_on, held, settings=probes)
    run.write_result("holdout", found.replace(protocol="offline linear probe, on held-out training images"))
    rows = found["per_temperature"] or [found.to_json()]
    each = [{k: row[k] for k in ("temperature", "accuracy", "standard_error")} for row in rows]
    for key, value in {
        "downstream_temperature": found["temperature"],
        "standard_error": found["standard_error"],
        "layer": found["layer"],
        "per_temperature": each,
        "pretrain_seconds": run.state["seconds"],
        "seconds": run.state["seconds"] + found["seconds"],
    }.items():
        trial.set_user_attr(key, value)
    return float(found["accuracy"])


def _suggest(trial: Any, plan: Plan) -> dict[str, Any]:
    """The settings of a trial; those of one that was killed are as they were."""
    settings: dict[str, Any] = {}
    for name, values in {**plan.grid, **plan.search}.items():
        if not isinstance(values, Range):
            settings[name] = trial.suggest_categorical(name, values)
        elif values.whole:
            settings[name] = trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
        else:
            settings[name] = trial.suggest_float(name, values.low, values.high, log=values.log)
    return settings


def _plan(
    recipe: Recipe | str,
    changes: dict[str, Any],
    *,
    grid: Any,
    search: Any,
    temperatures: Sequence[float] | None,
    probe_epochs: int | None,
    prune: bool | None,
) -> Plan:
    """A plan that was found to be possible."""
    base = recipes.get(recipe) if isinstance(recipe, str) else recipe
    base = place.with_absolute_paths(with_changes(base, {"holdout": base.holdout or HOLDOUT, **changes}))
    if grid and search:
        raise UserError("both a grid and a search were given; give one of them")
    prune = bool(search) if prune is None else prune
    if prune and base.online_every == 0:
        base = with_changes(base, {"online_every": max(1, base.epochs // 10)})
    plan = Plan(
        recipe=base,
        grid=read_grid(base, grid or {}),
        search=read_search(base, search or {}),
        temperatures=tuple(temperatures or ProbeSettings().temperatures),
        probe_epochs=probe_epochs or PROBE_EPOCHS,
        prune=prune,
    )
    plan.check()
    ProbeSettings(temperatures=plan.temperatures, epochs=plan.probe_epochs).validate()
    if base.data == "auto":
        raise UserError(f"recipe {base.name!r} is for your own images; give --data with a folder or a name")
    return plan


def _same(
    stored: Plan,
    recipe: Recipe | str,
    changes: dict[str, Any],
    folder: Path,
    *,
    grid: Any,
    search: Any,
    temperatures: Sequence[float] | None,
    probe_epochs: int | None,
    prune: bool | None,
) -> Plan:
    """The plan to go on with; what is given anew must be as it was."""
    name = recipe if isinstance(recipe, str) else recipe.name
    kept = stored.recipe
    given = {
        "recipe": (name, kept.name),
        "settings": (as_dict(place.with_absolute_paths(with_changes(kept, changes))), as_dict(kept)),
        "grid": (read_grid(kept, grid) if grid else stored.grid, stored.grid),
        "search": (read_search(kept, search) if search else stored.search, stored.search),
        "temperatures": (tuple(temperatures or stored.temperatures), stored.temperatures),
        "probe_epochs": (probe_epochs or stored.probe_epochs, stored.probe_epochs),
        "prune": (stored.prune if prune is None else prune, stored.prune),
    }
    for what, (asked, before) in given.items():
        if asked != before:
            shown = f" ({before!r})" if what not in ("settings", "search") else ""
            raise UserError(f"{folder} was begun with another {what}{shown}; give the same, or another --out")
    return stored


def _training_images(recipe: Recipe, download: bool) -> tuple[int, int]:
    """How many images a trial trains and is measured on; what is wrong with them is told before any trial."""
    size = datasets.decoded_size(recipe.data, recipe.actual_decode_size)
    train = datasets.load(recipe.data, "train", recipe.data_dir, download, size)
    fit_on, held = datasets.split(train, recipe.holdout)
    return len(fit_on), len(held)


def _folder(name: str, out: str | Path | None, resume: bool) -> Path:
    if out is None:
        if resume:
            raise UserError("resume needs the sweep's folder; give --out")
        out = f"sweeps/{name}"
    folder = Path(out)
    if folder.is_file():
        raise UserError(f"{folder} is a file; --out takes a folder")
    if resume and not folder.is_dir():
        raise UserError(f"there is no sweep in {folder}; --resume takes the folder of one, and begins none")
    if folder.is_dir() and any(folder.iterdir()):
        known = (folder / DATABASE).exists() or [p.name for p in folder.iterdir()] == ["lock"]
        if not known:
            raise UserError(f"{folder} holds other files; give another --out")
        if not resume:
            raise UserError(f"{folder} holds a sweep; add --resume to go on with it, or give another --out")
    return folder


def _study(optuna: Any, folder: Path) -> Any:
    from sqlalchemy.exc import SQLAlchemyError

    file = folder / DATABASE
    try:
        return optuna.create_study(
            storage=f"sqlite:///{file.resolve()}",
            study_name="sweep",
            direction="maximize",
            load_if_exists=True,
        )
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or type(error).__name__
        raise UserError(f"the sweep's database {file} cannot be used: {reason}") from error


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError("sweeps need Optuna; pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
