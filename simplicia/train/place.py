"""Where a run goes, and what may change when it is taken up again."""

import dataclasses
from pathlib import Path
from typing import Any

from simplicia.data import datasets
from simplicia.errors import UserError
from simplicia.train.recipe import Recipe, read_yaml
from simplicia.train.settings import as_dict, with_changes


def choose(name: str, out: str | Path | None, resume: bool) -> Path:
    """Where the run goes; a folder that holds another run is refused."""
    if out is None:
        if resume:
            raise UserError("resume needs the run's folder; give --out")
        return next(
            path
            for i in range(1, 10**6)
            if not (path := Path("runs") / (name if i == 1 else f"{name}-{i}")).exists()
        )
    folder = Path(out)
    if folder.is_file():
        raise UserError(f"{folder} is a file; --out takes a folder")
    if not resume and folder.is_dir() and any(folder.iterdir()):
        what = "a run" if (folder / "recipe.yaml").exists() else "other files"
        hint = "add --resume to go on with it, or " if what == "a run" else ""
        raise UserError(f"{folder} holds {what}; {hint}give another --out")
    return folder


def resumed(recipe: Recipe | str, changes: dict[str, Any], folder: Path) -> Recipe:
    """The recipe of the run in a folder, to go on with; only how it is watched may be asked anew.

    Of a recipe given by name, settings that are not named keep the run's values.
    """
    stored = read_yaml(folder / "recipe.yaml")
    if isinstance(recipe, str):
        if recipe != stored.name:
            raise UserError(
                f"{folder} was trained with recipe {stored.name!r}, not {recipe!r}; give another --out"
            )
        recipe = stored
    asked = findable(with_changes(recipe, changes))
    kept, wanted = _flat(as_dict(stored)), _flat(as_dict(asked))
    for name in sorted(kept.keys() | wanted.keys()):
        if name not in Recipe.WATCHING and kept.get(name) != wanted.get(name):
            raise UserError(
                f"{folder} was trained with {name} {kept.get(name)!r}, not {wanted.get(name)!r}; "
                "resume with the same settings, or give another --out"
            )
    return asked


def findable(recipe: Recipe) -> Recipe:
    """The recipe with its folder of images as an absolute path, so that the run finds it from anywhere."""
    if recipe.data in datasets.names() or not Path(recipe.data).is_dir():
        return recipe
    return dataclasses.replace(recipe, data=str(Path(recipe.data).resolve()))


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out
