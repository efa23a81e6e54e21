"""simplicia cost: parameters, FLOPs and memory."""

from typing import Any

from simplicia.cli.options import Parser
from simplicia.cli.tables import decimals, table, write_json
from simplicia.cli.verbs import verb
from simplicia.errors import UserError

DEFAULT = ("cifar100-byol", "cifar100-byol-sem", "cifar100-byol-sem8")
COUNTS = ("parameters", "activations", "FLOPs")


@verb("cost [RECIPE …]", "count parameters, FLOPs and memory of recipes: simplicia cost cifar100-byol-sem")
def cost(parser: Parser, arguments: list[str]) -> None:
    """Count parameters, activations and FLOPs of the online network per sample, and estimate memory.

    Every setting of a recipe is an option.
    """
    import torch

    from simplicia.provenance import commit, versions
    from simplicia.train.recipe import Recipe

    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"(default: {' '.join(DEFAULT)})")
    parser.add_argument("--paper", action="store_true", help="compare with the paper's cost table")
    parser.add_argument("--measure", action="store_true", help="measure peak memory by two steps on a GPU")
    parser.add("--device")
    parser.add("--json", help="file for the numbers")
    parser.add_settings(Recipe())
    args = parser.parse(arguments)
    changes = parser.changes(args)
    if args.paper and (args.recipes or changes or args.measure):
        raise UserError("--paper counts the paper's six models; it takes neither recipes nor settings")
    device = args.device if args.measure else None
    rows = _paper() if args.paper else _recipes(args.recipes or DEFAULT, changes, device)
    if args.json:
        write_json(args.json, {"rows": rows, "commit": commit(), **versions(torch.device("cpu"))})


def _recipes(names: Any, changes: dict[str, Any], device: str | None) -> list[dict[str, Any]]:
    from simplicia.analyze.model_cost import cost_of, measured_peak
    from simplicia.settings import as_dict, with_changes
    from simplicia.train import recipes

    rows: list[dict[str, Any]] = []
    for recipe in [with_changes(recipes.get(name), changes) for name in names]:
        counted = cost_of(recipe)
        precision = "bf16" if recipe.precision == "auto" else recipe.precision
        rows.append(
            {
                "recipe": recipe.name,
                "changes": changes,
                "parameters": counted.parameters,
                "activations": counted.activations,
                "flops": counted.flops,
                "parts": {name: vars(part) for name, part in counted.parts.items()},
                "batch_size": recipe.batch_size,
                "precision": precision,
                "estimated_gib": counted.memory(recipe.actual_micro_batch_size, precision) / 2**30,
                "measured_gib": None if device is None else measured_peak(recipe, device),
                "settings": as_dict(recipe),
            }
        )
    memory = ("estimated_gib", "measured_gib")
    table(
        "the online network, per sample; memory of training",
        ["recipe", *COUNTS, "estimated GiB", "measured GiB"],
        [[row["recipe"], *_counts(row), *(decimals(row[name], 2) for name in memory)] for row in rows],
    )
    return rows


def _paper() -> list[dict[str, Any]]:
    from simplicia.analyze.model_cost import paper_table

    rows = paper_table()
    table(
        "the online network, per 32x32 sample, and the paper's table",
        ["encoder", "model", *COUNTS, "paper's", "paper's", "paper's", "difference %"],
        [
            [
                *(row["encoder"], row["model"], *_counts(row), *_counts(row["paper"])),
                " ".join(f"{value:+.2f}" for value in row["deviation_percent"].values()),
            ]
            for row in rows
        ],
    )
    return rows


def _counts(row: dict[str, Any]) -> list[str]:
    return [f"{row['parameters'] / 1e6:.1f} M", f"{row['activations'] / 1e6:.3f} M", f"{row['flops']:.3g}"]
