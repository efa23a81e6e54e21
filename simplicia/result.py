"""What a measurement produced, with what is needed to believe it: typed, read and written in one place.

A file of results is flat JSON: the fields of the dataclass and, beside them, whatever else the protocol
reports (``details``). Files come from strangers as well, so everything that is read is checked here, once;
the rest of the package trusts a record.
"""

import dataclasses
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from simplicia.errors import UserError
from simplicia.files import atomic_write

LARGEST = 1e300  # larger numbers cannot be computed with


@dataclass
class Record:
    """Typed fields, and ``details`` for what only some protocols report. ``record["accuracy"]`` works too."""

    details: dict[str, Any] = field(default_factory=dict, kw_only=True)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """A record from parsed JSON; a ValueError names the first field that has the wrong type."""
        if not isinstance(value, dict):
            raise ValueError(f"it is a {type(value).__name__}, not an object")
        hints, names = typing.get_type_hints(cls), _field_names(cls)
        for name in names:
            if name in value and not _fits(value[name], hints[name]):
                raise ValueError(f"{name} is {str(value[name])[:80]!r}")
        known = {name: value[name] for name in names if name in value}
        try:
            return cls(**known, details={k: v for k, v in value.items() if k not in names})
        except TypeError:
            missing = [f.name for f in dataclasses.fields(cls) if _is_required(f) and f.name not in value]
            raise ValueError(f"it lacks {', '.join(missing)}") from None

    def to_json(self) -> dict[str, Any]:
        """The flat dictionary that is written; fields that are None are left out."""
        own = {name: getattr(self, name) for name in _field_names(type(self))}
        return {name: value for name, value in own.items() if value is not None} | self.details

    @classmethod
    def read(cls, path: Path) -> Self:
        """A record from its file; a UserError if it cannot be read as one."""
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read as a result: {str(error).splitlines()[0]}") from error

    def write(self, path: Path) -> Path:
        """Write the record as JSON, all of it or nothing."""
        write_json(path, self.to_json())
        return path

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name) if name in _field_names(type(self)) else self.details[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A field or a detail, or the default where there is none."""
        try:
            value = self[name]
        except KeyError:
            return default
        return default if value is None else value


@dataclass
class Result(Record):
    """An evaluation of a run."""

    protocol: str
    online: bool = False  # measured by a probe that learned during pre-training
    dataset: str = ""  # name of the images
    data: str | None = None  # their name or path: what finds them again
    run: str | None = None  # name of the run's recipe
    encoder: str | None = None
    method: str | None = None
    bottleneck: str | None = None
    sem: bool | None = None
    pretrain_epochs: int | None = None
    pretrain_step: int | None = None
    pretrain_seed: int | None = None
    run_id: str | None = None
    batch_size: int | None = None
    network: str = "online"
    layer: str | None = None
    temperature: float | None = None
    selected: dict[str, Any] = field(default_factory=dict)  # chosen on held-out training images
    train_images: int | None = None
    validation_images: int | None = None
    test_images: int | None = None
    classes: int | None = None
    skipped_files: int | None = None
    seeds: list[int] = field(default_factory=list)
    accuracy: float | None = None  # percent
    standard_error: float | None = None  # of the test images
    standard_deviation: float | None = None  # over seeds
    seed_accuracies: list[float] | None = None
    top5_accuracy: float | None = None
    top5_standard_error: float | None = None
    seconds: float | None = None
    simplicia: str | None = None
    torch: str | None = None
    python: str | None = None
    device: str | None = None
    date: str | None = None
    commit: str | None = None

    # details that hold rows, and what every row of them has
    ROWS: typing.ClassVar = {
        "per_temperature": ("accuracy", "standard_error"),
        "trials": (),
        "path": ("regulariser",),
    }
    NUMBERS: typing.ClassVar = (
        *("accuracy", "standard_error", "standard_deviation", "top5_accuracy", "temperature"),
        *("fraction", "epochs", "regulariser", "k", "steps"),
    )

    @classmethod
    def from_json(cls, value: Any) -> Self:
        result = super().from_json(value)
        result._check_details()
        return result

    def _check_details(self) -> None:
        grid = self.details.get("grid") or {}
        if not isinstance(grid, dict) or not all(isinstance(values, list) for values in grid.values()):
            raise ValueError("grid is not an object of lists")
        if not isinstance(self.details.get("changed") or {}, dict):
            raise ValueError("changed is not an object")
        _check_numbers(self.details, self.NUMBERS, ())
        for name, needed in self.ROWS.items():
            rows = self.details.get(name) or []
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ValueError(f"{name} is not a list of objects")
            for row in rows:
                _check_numbers(row, self.NUMBERS, needed)


def read_results(run_dir: Path) -> list[Result]:
    """The evaluations in a run's ``results`` folder; a file of another form is left out."""
    found = []
    for path in sorted((run_dir / "results").glob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read as a result: {str(error).splitlines()[0]}") from error
        try:
            found.append(Result.from_json(value))
        except ValueError:
            continue
    return found


def write_json(path: Path, value: Any) -> None:
    """Write JSON, all of it or nothing; a disk that cannot take it is a UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"the result cannot be written to {path}: {error.strerror}") from error


def percent(correct: float, total: int, top5: float | None = None) -> dict[str, float]:
    """An accuracy in percent with its standard error; with ``top5`` correct ones, that accuracy as well."""

    def share(right: float) -> tuple[float, float]:
        p = right / total
        return 100 * p, 100 * math.sqrt(p * (1 - p) / total)

    accuracy, error = share(correct)
    found = {"accuracy": accuracy, "standard_error": error}
    if top5 is not None:
        found["top5_accuracy"], found["top5_standard_error"] = share(top5)
    return found


def over_seeds(correct: Sequence[int], total: int, top5: Sequence[int] | None = None) -> dict[str, Any]:
    """``percent`` of the mean over seeds; with several seeds, each accuracy and their standard deviation.

    All seeds are tested on the same images, so the standard error is that of one test.
    """
    n = len(correct)
    found: dict[str, Any] = percent(sum(correct) / n, total, None if top5 is None else sum(top5) / n)
    if n > 1:
        accuracies = [100 * c / total for c in correct]
        spread = math.sqrt(sum((a - found["accuracy"]) ** 2 for a in accuracies) / (n - 1))
        found |= {"seed_accuracies": accuracies, "standard_deviation": spread}
    return found


def digest(text: str) -> str:
    """Six digits that stand for a path or a list in a file's name."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:6]


def file_word(word: str) -> str:
    """Somebody else's name as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._]+", "_", word)


def is_number(value: Any) -> bool:
    """Whether a value from a JSON file is a number that can be computed with and shown."""
    return isinstance(value, int | float) and -LARGEST < value < LARGEST


def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls) if f.name != "details")


def _is_required(f: dataclasses.Field) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value has the type of a field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if hint is Any:
        return True
    if hint is type(None):
        return value is None
    if hint is float:
        return is_number(value)
    if hint is int:
        return isinstance(value, int) and is_number(value)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in value.values())
    return isinstance(value, hint)


def _check_numbers(row: dict[str, Any], names: Sequence[str], needed: Sequence[str]) -> None:
    for name in names:
        value = row.get(name)
        if (value is not None or name in needed) and not is_number(value):
            raise ValueError(f"{name} is {str(value)[:80]!r}")
