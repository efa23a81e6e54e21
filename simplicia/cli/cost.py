"""simplicia cost: parameters, FLOPs and memory."""

from typing import Annotated, Any

from simplicia.cli.tables import decimals, table, write_json
from simplicia.cli.verbs import Device, Json, Settings, verb
from simplicia.errors import UserError

DEFAULT = ("cifar100-byol", "cifar100-byol-sem", "cifar100-byol-sem8")
COUNTS = ("parameters", "activations", "FLOPs")


@verb("cost [RECIPE …]", "train.recipe:Recipe")
def cost(
    settings: Settings,
    recipes: Annotated[tuple[str, ...], f"(default: {' '.join(DEFAULT)})"] = (),
    *,
    paper: Annotated[bool, "compare with the paper's cost table"] = False,
    measure: Annotated[bool, "measure peak memory by two steps on a GPU"] = False,
    device: Device = "auto",
    json: Json = None,
) -> None:
    """Count parameters, FLOPs and memory of recipes: simplicia cost cifar100-byol-sem.

    Counts are of the online network, per sample. Every setting of a recipe is an option.
    """
    import torch

    from simplicia.analyze.model_cost import paper_table
    from simplicia.provenance import commit, versions

    lines = []
    if paper:
        if recipes or settings.changes or measure:
            raise UserError("--paper counts the paper's six models; it takes neither recipes nor settings")
        rows = paper_table()
        for row in rows:
            difference = " ".join(f"{value:+.2f}" for value in row["deviation_percent"].values())
            lines.append([row["encoder"], row["model"], *_counts(row), *_counts(row["paper"]), difference])
        columns = ["encoder", "model", *COUNTS, *["paper's"] * 3, "difference %"]
        table("the online network, per 32x32 sample, and the paper's table", columns, lines)
    else:
        rows = [_cost(name, settings.changes, device if measure else None) for name in recipes or DEFAULT]
        for row in rows:
            memory = [decimals(row[name], 2) for name in ("estimated_gib", "measured_gib")]
            lines.append([row["recipe"], *_counts(row), *memory])
        columns = ["recipe", *COUNTS, "estimated GiB", "measured GiB"]
        table("the online network, per sample; memory of training", columns, lines)
    write_json(json, {"rows": rows, "commit": commit(), **versions(torch.device("cpu"))})


def _cost(name: str, changes: dict[str, Any], measure_on: str | None) -> dict[str, Any]:
    from simplicia.analyze.model_cost import cost_of, measured_peak
    from simplicia.settings import as_dict, with_changes
    from simplicia.train import recipes

    recipe = with_changes(recipes.get(name), changes)
    counted, precision = cost_of(recipe), "bf16" if recipe.precision == "auto" else recipe.precision
    return {
        "recipe": recipe.name,
        "changes": changes,
        **{name: getattr(counted, name) for name in ("parameters", "activations", "flops")},
        "parts": {name: vars(part) for name, part in counted.parts.items()},
        "batch_size": recipe.batch_size,
        "precision": precision,
        "estimated_gib": counted.memory(recipe.micro_batch_size(), precision) / 2**30,
        "measured_gib": None if measure_on is None else measured_peak(recipe, measure_on),
        "settings": as_dict(recipe),
    }


def _counts(row: dict[str, Any]) -> list[str]:
    return [f"{row['parameters'] / 1e6:.1f} M", f"{row['activations'] / 1e6:.3f} M", f"{row['flops']:.3g}"]
