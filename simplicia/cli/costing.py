"""The verb that counts: cost."""

import json
from pathlib import Path
from typing import Any

from simplicia.cli.options import Parser, add_settings, target
from simplicia.cli.tables import table, write_text
from simplicia.errors import UserError


def cost(arguments: list[str]) -> None:
    from simplicia.train.recipe import Recipe

    parser = Parser(
        "cost [RECIPE …]",
        description="Parameters, activations and FLOPs of the online network per sample, and memory. Any "
        "setting of a recipe is an option.",
    )
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="(default: BYOL without and with SEM)")
    parser.add_argument("--paper", action="store_true", help="the paper's cost table beside its figures")
    parser.add_argument("--measure", action="store_true", help="also train two steps on a GPU: peak memory")
    parser.add_argument("--device", default="auto", help="where to measure (default: auto)")
    parser.add_argument("--json", type=target, metavar="PATH", help="where the numbers go as well")
    setters = add_settings(parser, Recipe(), skip=("name", "options"))
    given = vars(parser.parse(arguments))
    changes = {name: given[name] for name in setters if given[name] is not None}
    if given["paper"]:
        if given["recipes"] or changes or given["measure"]:
            raise UserError("--paper counts the paper's six models; it takes neither recipes nor settings")
        rows = _paper()
    else:
        names = given["recipes"] or ["cifar100-byol", "cifar100-byol-sem", "cifar100-byol-sem8"]
        rows = _recipes(names, changes, given["device"] if given["measure"] else None)
    if given["json"]:
        _write(rows, Path(given["json"]))


def _recipes(names: list[str], changes: dict[str, Any], device: str | None) -> list[dict[str, Any]]:
    from simplicia.analyze.model_cost import cost_of, measured_peak
    from simplicia.settings import as_dict, with_changes
    from simplicia.train import recipes

    rows, shown = [], []
    for recipe in [with_changes(recipes.get(name), changes) for name in names]:
        found = cost_of(recipe)
        precision = "bf16" if recipe.precision == "auto" else recipe.precision
        row: dict[str, Any] = {
            "recipe": recipe.name,
            "changes": changes,
            "parameters": found.parameters,
            "activations": found.activations,
            "flops": found.flops,
            "parts": {name: vars(part) for name, part in found.parts.items()},
            "batch_size": recipe.batch_size,
            "precision": precision,
            "estimated_gib": found.memory(recipe.actual_micro_batch_size, precision) / 2**30,
            "measured_gib": None if device is None else measured_peak(recipe, device),
            "settings": as_dict(recipe),
        }
        rows.append(row)
        measured = "-" if row["measured_gib"] is None else f"{row['measured_gib']:.2f}"
        shown.append([recipe.name, *_figures(row), f"{row['estimated_gib']:.2f}", measured])
    columns = ["recipe", "parameters", "activations", "FLOPs", "estimated GiB", "measured GiB"]
    table("the online network, per sample; memory of training", columns, shown)
    return rows


def _paper() -> list[dict[str, Any]]:
    from simplicia.analyze.model_cost import paper_table

    rows = paper_table()
    shown = []
    for row in rows:
        apart = " ".join(f"{value:+.2f}" for value in row["deviation_percent"].values())
        shown.append([row["encoder"], row["model"], *_figures(row), *_figures(row["paper"]), apart])
    columns = ["encoder", "model", "parameters", "activations", "FLOPs"]
    columns += ["paper's", "paper's", "paper's", "apart %"]
    table("the online network, per 32x32 sample, beside the paper's table", columns, shown)
    return rows


def _figures(row: dict[str, Any]) -> list[str]:
    return [f"{row['parameters'] / 1e6:.1f} M", f"{row['activations'] / 1e6:.3f} M", f"{row['flops']:.3g}"]


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    import torch

    from simplicia.provenance import commit, versions

    result = {"rows": rows, "commit": commit(), **versions(torch.device("cpu"))}
    write_text(path, json.dumps(result, indent=1) + "\n")
