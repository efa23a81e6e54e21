"""Where a run goes, and what may change when it is taken up again."""

from pathlib import Path
from typing import Any

from simplicia.errors import UserError
from simplicia.train.recipe import Recipe, read_yaml
from simplicia.train.settings import as_dict, with_changes


def choose(recipe: Recipe, out: str | Path | None, resume: bool) -> Path:
    """Where the run goes; a folder that holds another run is refused."""
    if out is None:
        if resume:
            raise UserError("resume needs the run's folder; give --out")
        return next(
            path
            for i in range(1, 10**6)
            if not (path := Path("runs") / (recipe.name if i == 1 else f"{recipe.name}-{i}")).exists()
        )
    folder = Path(out)
    if folder.is_file():
        raise UserError(f"{folder} is a file; --out takes a folder")
    if not resume and folder.is_dir() and any(folder.iterdir()):
        what = "a run" if (folder / "recipe.yaml").exists() else "other files"
        hint = "add --resume to go on with it, or " if what == "a run" else ""
        raise UserError(f"{folder} holds {what}; {hint}give another --out")
    return folder


def resumed(asked: Recipe, folder: Path) -> Recipe:
    """The recipe of a run to be resumed; only how it is watched may differ from what is asked now."""
    stored = read_yaml(folder / "recipe.yaml")
    kept, wanted = _flat(as_dict(stored)), _flat(as_dict(asked))
    left_open = {
        "image_size": 0,
        "encoder": "auto",
        "stem": "auto",
        "batch_size": 0,
        "sem.simplices": 0,
        "precision": "auto",
    }
    for name in sorted(kept.keys() | wanted.keys()):
        decided_then = name in left_open and wanted.get(name) == left_open[name]
        if name not in Recipe.WATCHING and not decided_then and kept.get(name) != wanted.get(name):
            raise UserError(
                f"{folder} was trained with {name} {kept.get(name)!r}, not {wanted.get(name)!r}; "
                "resume with the same settings, or give another --out"
            )
    return with_changes(stored, {name: getattr(asked, name) for name in Recipe.WATCHING})


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out
