"""simplicia recipes, datasets, methods: what there is to choose from."""

from typing import Annotated

import simplicia
from simplicia.cli.tables import cell, table
from simplicia.cli.verbs import verb


@verb("recipes [NAME]")
def recipes(name: Annotated[str | None, "recipe to print"] = None) -> None:
    """List the named recipes, or the settings of one as YAML."""
    import yaml

    from simplicia.settings import as_dict
    from simplicia.train import recipes

    if name is not None:
        print(yaml.safe_dump(as_dict(recipes.get(name)), sort_keys=False), end="")
        return
    rows = []
    for recipe in map(recipes.get, recipes.names()):
        data = "your images" if recipe.data == "auto" else recipe.data
        tau, second = recipe.sem.temperature, recipe.sem.second_temperature
        taus = f"{tau:g} / {tau if second is None else second:g}" if recipe.bottleneck == "sem" else None
        optim = f"{recipe.optim.name} {recipe.optim.lr:g}"
        rows.append([recipe.name, data, recipe.encoder, recipe.epochs, optim, taus])
    table("recipes", ["name", "data", "encoder", "epochs", "optimiser, lr", "tau / tau'"], rows)


@verb("datasets")
def datasets() -> None:
    """List the data sets."""
    from simplicia.data.datasets import REGISTRY

    rows = [[name, about.where, about.description] for name, about in sorted(REGISTRY.items())]
    rows.append(["FOLDER", "your own", "folder/<class>/*, folder/{train,test}/<class>/*, or just images"])
    table("data sets", ["name", "where", "what"], rows)


@verb("methods")
def methods() -> None:
    """List the methods and their options."""
    options = {name: simplicia.methods.options(name).values() for name in simplicia.methods.names()}
    rows = [[name, ", ".join(f"{o.name} {cell(o.default)}" for o in each)] for name, each in options.items()]
    table("methods", ["name", "options (as --NAME.OPTION)"], rows)
