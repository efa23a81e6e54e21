"""simplicia cost: parameters, FLOPs and memory."""

from typing import Annotated, Any

from simplicia.cli.options import Device, Json
from simplicia.cli.tables import decimals, table, write_json
from simplicia.cli.verbs import Settings, defaults_of, verb
from simplicia.errors import UserError

DEFAULT = ("cifar100-byol", "cifar100-byol-sem", "cifar100-byol-sem8")
COUNTS = ("parameters", "activations", "FLOPs")


@verb(
    "cost [RECIPE …]",
    "count parameters, FLOPs and memory of recipes: simplicia cost cifar100-byol-sem",
    defaults_of("train.recipe", "Recipe"),
)
def cost(
    settings: Settings,
    recipes: Annotated[tuple[str, ...], "(default: cifar100-byol cifar100-byol-sem cifar100-byol-sem8)"] = (),
    *,
    paper: Annotated[bool, "compare with the paper's cost table"] = False,
    measure: Annotated[bool, "measure peak memory by two steps on a GPU"] = False,
    device: Device = "auto",
    json: Json = None,
) -> None:
    """Count parameters, activations and FLOPs of the online network per sample, and estimate memory.

    Every setting of a recipe is an option.
    """
    import torch

    from simplicia.provenance import commit, versions

    if paper and (recipes or settings.changes or measure):
        raise UserError("--paper counts the paper's six models; it takes neither recipes nor settings")
    rows = _paper() if paper else _recipes(recipes or DEFAULT, settings.changes, device if measure else None)
    write_json(json, {"rows": rows, "commit": commit(), **versions(torch.device("cpu"))})


def _recipes(names: Any, changes: dict[str, Any], device: str | None) -> list[dict[str, Any]]:
    from simplicia.analyze.model_cost import cost_of, measured_peak
    from simplicia.settings import as_dict, with_changes
    from simplicia.train import recipes

    rows: list[dict[str, Any]] = []
    for recipe in [with_changes(recipes.get(name), changes) for name in names]:
        counted = cost_of(recipe)
        precision = "bf16" if recipe.precision == "auto" else recipe.precision
        row: dict[str, Any] = {"recipe": recipe.name, "changes": changes}
        row |= {name: getattr(counted, name) for name in ("parameters", "activations", "flops")}
        row |= {
            "parts": {name: vars(part) for name, part in counted.parts.items()},
            "batch_size": recipe.batch_size,
            "precision": precision,
            "estimated_gib": counted.memory(recipe.actual_micro_batch_size, precision) / 2**30,
            "measured_gib": None if device is None else measured_peak(recipe, device),
            "settings": as_dict(recipe),
        }
        rows.append(row)
    memory = ("estimated_gib", "measured_gib")
    table(
        "the online network, per sample; memory of training",
        ["recipe", *COUNTS, "estimated GiB", "measured GiB"],
        [[row["recipe"], *_counts(row), *(decimals(row[name], 2) for name in memory)] for row in rows],
    )
    return rows


def _paper() -> list[dict[str, Any]]:
    from simplicia.analyze.model_cost import paper_table

    rows, lines = paper_table(), []
    for row in rows:
        difference = " ".join(f"{value:+.2f}" for value in row["deviation_percent"].values())
        lines.append([row["encoder"], row["model"], *_counts(row), *_counts(row["paper"]), difference])
    columns = ["encoder", "model", *COUNTS, *["paper's"] * 3, "difference %"]
    table("the online network, per 32x32 sample, and the paper's table", columns, lines)
    return rows


def _counts(row: dict[str, Any]) -> list[str]:
    return [f"{row['parameters'] / 1e6:.1f} M", f"{row['activations'] / 1e6:.3f} M", f"{row['flops']:.3g}"]
