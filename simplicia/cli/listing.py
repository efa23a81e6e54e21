"""Verbs that say what there is: recipes, datasets, methods."""

from simplicia.cli.options import Parser
from simplicia.cli.tables import table


def recipes(arguments: list[str]) -> None:
    from simplicia.train import recipes

    parser = Parser("recipes", description="The named recipes; with a name, all settings of one as YAML.")
    parser.add_argument("name", nargs="?", help="show this recipe")
    name = parser.parse(arguments).name
    if name is not None:
        import yaml

        from simplicia.settings import as_dict

        print(yaml.safe_dump(as_dict(recipes.get(name)), sort_keys=False), end="")
        return
    rows = []
    for recipe in map(recipes.get, recipes.names()):
        data = "your own images" if recipe.data == "auto" else recipe.data
        sem = recipe.sem
        second = sem.temperature if sem.second_temperature is None else sem.second_temperature
        taus = f"{sem.temperature:g} / {second:g}" if recipe.bottleneck == "sem" else "-"
        optim = f"{recipe.optim.name} {recipe.optim.lr:g}"
        rows.append([recipe.name, data, recipe.encoder, str(recipe.epochs), optim, taus])
    table("recipes", ["name", "data", "encoder", "epochs", "optimiser, lr", "tau / tau'"], rows)


def datasets(arguments: list[str]) -> None:
    from simplicia.data.datasets import REGISTRY

    Parser("datasets", description="The data sets that have a name.").parse(arguments)
    rows = [[name, REGISTRY[name].where, REGISTRY[name].description] for name in sorted(REGISTRY)]
    rows.append(["FOLDER", "your own", "folder/<class>/*, folder/{train,test}/<class>/*, or just images"])
    table("data sets", ["name", "where", "what"], rows)


def methods(arguments: list[str]) -> None:
    from simplicia import methods

    Parser("methods", description="The methods and their options.").parse(arguments)
    rows = [
        [name, ", ".join(f"{o.name} {o.default}" for o in methods.options(name).values())]
        for name in methods.names()
    ]
    table("methods", ["name", "options (as --NAME.OPTION)"], rows)
