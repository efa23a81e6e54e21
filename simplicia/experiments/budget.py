"""What an experiment takes: runs, GPU hours, memory. Step times of Table 1 are measured, others estimated."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from simplicia.analyze.model_cost import Cost, cost_of
from simplicia.experiments.experiment import Experiment, Plan
from simplicia.train import recipes
from simplicia.train.recipe import Recipe

# results/bench/step.json: milliseconds of a step of 256 images on an H200
MEASURED = {
    "cifar100-byol": 7.185,
    "cifar100-byol-sem": 11.221,
    "cifar100-byol-sem8": 8.8,
    "cifar100-simclr": 5.661,
    "cifar100-simclr-sem": 7.754,
    "cifar100-moco": 7.456,
    "cifar100-moco-sem": 10.154,
    "cifar100-barlow": 5.992,
    "cifar100-barlow-sem": 8.099,
    "cifar100-swav": 5.801,
    "cifar100-swav-sem": 7.896,
    "cifar100-dino": 7.27,
    "cifar100-dino-sem": 10.027,
    "cifar100-vicreg": 6.182,
    "cifar100-vicreg-sem": 8.288,
}
# results/bench/probe.json: seconds of the whole probe with the preset cifar there; other layers count as sem
PROBE_SECONDS = {"sem": 118.0, "encoder": 31.0, "codes": 61.0}
# results/paper: seconds of what is measured in another way, some of it while the GPU was shared
OTHER_SECONDS = {"coherence": 32.0, "entropy": 5.0, "spectrum": 6.0, "tradeoff": 11.0}
IMAGES = 50_000
SOURCE = (
    "Hours are of one H200, for one seed, training and measuring, at the paper's epochs or at --epochs.\n"
    "Steps of Table 1's recipes, and measurements, were timed there; an estimate has other steps, from\n"
    "FLOPs and parameters. Runs that experiments share are trained once, and counted in each."
)


@dataclass(frozen=True)
class Budget:
    """What one seed takes on one GPU."""

    runs: int
    hours: float | None  # None: not known, as on ImageNet
    measured: bool  # the steps of all its runs
    gib: float | None
    disk: float | None  # GB of the checkpoints of all its runs, one of each


def budget(experiment: Experiment, epochs: int | None = None) -> Budget:
    """Of an experiment on the paper's data; hours are known of CIFAR-100, where steps were timed."""
    if experiment.data != "cifar100":
        return Budget(len({(c.recipe, str(c.changes)) for c in experiment.cells}), None, False, None, None)
    trained = [(c, experiment.plan(c, epochs)) for c in experiment.cells if c.recipe is not None]
    plans = {found.folder: found for _, found in trained}
    seconds = sum(step_ms(p) / 1000 * _steps(p.complete) for p in plans.values())
    measurements = {(p.folder, c.measure.split("_")[0], c.options.get("layer")) for c, p in trained}
    seconds += sum(_measuring(kind, layer) for _, kind, layer in measurements)
    gib = [cost(p.complete).memory(p.complete.actual_micro_batch_size) / 2**30 for p in plans.values()]
    disk = sum(checkpoint_bytes(p.complete) for p in plans.values()) / 1e9
    return Budget(len(plans), seconds / 3600, all(map(timed, plans.values())), max(gib, default=0.0), disk)


def _steps(recipe: Recipe) -> int:
    return recipe.epochs * (IMAGES // recipe.batch_size)


def _measuring(kind: str, layer: str | None) -> float:
    """Seconds of one measurement."""
    return OTHER_SECONDS.get(kind, PROBE_SECONDS.get(layer or "sem", PROBE_SECONDS["sem"]))


def timed(wanted: Plan) -> bool:
    """Whether steps of just this run were measured."""
    return wanted.recipe in MEASURED and not wanted.differs


def step_ms(wanted: Plan) -> float:
    """A step's milliseconds: as measured, or a sum of shares of the FLOPs and of the parameters.

    The two shares are those that give the two times of BYOL, without SEM and with it.
    """
    if timed(wanted):
        return MEASURED[wanted.recipe]
    per_flop, per_parameter = _shares()
    found = cost(wanted.complete)
    return found.flops * per_flop + found.parameters * per_parameter


def checkpoint_bytes(recipe: Recipe) -> int:
    """Of one checkpoint: weights, their momentum and the target network, in 4 bytes."""
    found = cost(recipe)
    return 4 * (2 * found.parameters + found.target_parameters)


def cost(recipe: Recipe) -> Cost:
    """What the model of a recipe costs; many recipes have the same model."""
    model = recipe.method, recipe.bottleneck, recipe.encoder, recipe.sem.simplices, recipe.sem.vertices
    key = (*model, recipe.actual_view_size, recipe.sem.embedder, recipe.sem.norm, recipe.sem.blocks)
    if key not in _COSTS:
        _COSTS[key] = cost_of(recipe)
    return _COSTS[key]


_COSTS: dict[tuple[Any, ...], Cost] = {}


@cache
def _shares() -> tuple[float, float]:
    """Milliseconds of a FLOP and of a parameter, from two equations."""
    both = "cifar100-byol", "cifar100-byol-sem"
    (base, first), (sem, second) = ((cost_of(recipes.get(name)), MEASURED[name]) for name in both)
    determinant = base.flops * sem.parameters - sem.flops * base.parameters
    per_flop = (first * sem.parameters - second * base.parameters) / determinant
    return per_flop, (base.flops * second - sem.flops * first) / determinant
