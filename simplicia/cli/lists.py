"""simplicia recipes, datasets, methods: what there is to choose from."""

from typing import Annotated

from simplicia.cli.tables import cell, table
from simplicia.cli.verbs import verb


@verb("recipes [NAME]", "list the named recipes, or the settings of one")
def recipes(name: Annotated[str | None, "recipe to print"] = None) -> None:
    """List the named recipes or, given a name, print all settings of one as YAML."""
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


@verb("datasets", "list the data sets")
def datasets() -> None:
    """List the named data sets."""
    from simplicia.data.datasets import REGISTRY

    rows = [[name, REGISTRY[name].where, REGISTRY[name].description] for name in sorted(REGISTRY)]
    rows.append(["FOLDER", "your own", "folder/<class>/*, folder/{train,test}/<class>/*, or just images"])
    table("data sets", ["name", "where", "what"], rows)


@verb("methods", "list the methods and their options")
def methods() -> None:
    """List the self-supervised methods and their options."""
    from simplicia import methods

    rows = []
    for name in methods.names():
        options = methods.options(name).values()
        rows.append([name, ", ".join(f"{option.name} {cell(option.default)}" for option in options)])
    table("methods", ["name", "options (as --NAME.OPTION)"], rows)
