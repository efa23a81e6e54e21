"""simplicia recipes, datasets, methods: what there is to choose from."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import simplicia
from simplicia.cli.tables import cell, table
from simplicia.cli.verbs import verb
from simplicia.errors import UserError
from simplicia.files import atomic_write
from simplicia.progress import plural


@verb("recipes [NAME]")
def recipes(name: Annotated[str | None, "recipe to print"] = None) -> None:
    """List the named recipes, or the settings of one as YAML."""
    if name is not None:
        import yaml

        from simplicia.settings import as_dict
        from simplicia.train import recipes

        print(yaml.safe_dump(as_dict(recipes.get(name)), sort_keys=False, allow_unicode=True), end="")
        return
    columns = ["without SEM", "with SEM", "or ending in", "optimiser, lr", "tau / tau'"]
    for title, rows in _listing():
        table(title, columns, rows)
        print()
    print("settings of a recipe: simplicia recipes NAME; to change them: simplicia recipes NAME > mine.yaml")


def _listing() -> list[Any]:
    """Titles and rows of the tables of recipes.

    They depend on the package's files alone, and are stored, because building recipes takes torch.
    """
    package = Path(simplicia.__file__).parent
    files = [p for part in ("train", "methods", "bottlenecks") for p in sorted((package / part).glob("*.py"))]
    stamps = [(str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in [package / "settings.py", *files]]
    key, place = repr((simplicia.__version__, stamps)), os.environ.get("XDG_CACHE_HOME")
    path = Path(place or Path.home() / ".cache") / "simplicia" / "recipes.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # missing, damaged or of another version
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["key"] == key:
            return stored["tables"]
    tables = _tables()
    with suppress(OSError, UserError):  # a folder that cannot be written costs only time
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps({"key": key, "tables": tables}), encoding="utf-8")
    return tables


def _tables() -> list[Any]:
    """A table per data set: a title, and a row per method."""
    from simplicia.train import recipes

    # the user's own images first
    all_recipes = sorted(map(recipes.get, recipes.names()), key=lambda recipe: recipe.data != "auto")
    tables: dict[str, list[Any]] = {}
    for base in all_recipes:
        if base.bottleneck != "none":
            continue
        about = base.data, base.method, base.encoder
        family = [r for r in all_recipes if (r.data, r.method, r.encoder) == about]
        sem = next(r for r in family if r.bottleneck == "sem" and r.sem.blocks == 1)
        tau, second = sem.sem.temperature, sem.sem.second_temperature
        others = " ".join(r.name.removeprefix(base.name) for r in family if r not in (base, sem))
        data = "your images (--data FOLDER)" if base.data == "auto" else base.data
        title = f"{data}: encoder {base.encoder}, {plural(base.epochs, 'epoch')}"
        row = [base.name, sem.name, others or None, f"{base.optim.name} {base.optim.lr:g}"]
        tables.setdefault(title, []).append([*row, f"{tau:g} / {tau if second is None else second:g}"])
    return list(map(list, tables.items()))


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
