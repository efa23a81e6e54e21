"""Typed results of measurements, and the one place that reads and writes them.

A result file is flat JSON: the fields of the dataclass, then the protocol's own entries (``details``). Files
may come from strangers, so ``from_json`` checks every value; the rest of the package trusts a record.
"""

import base64
import dataclasses
import hashlib
import json
import math
import re
import statistics
import types
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from simplicia.errors import UserError, reason
from simplicia.files import write_file

LARGEST = 1e300  # arithmetic with larger numbers overflows


@dataclass
class Record:
    """Typed fields, and ``details`` for what only some protocols report. ``record["accuracy"]`` works too."""

    details: dict[str, Any] = field(default_factory=dict, kw_only=True)

    NULLABLE: typing.ClassVar[tuple[str, ...]] = ()  # fields that are written even if None

    @classmethod
    def make(cls, /, **values: Any) -> Self:
        """Build a record; values that are no fields become details."""
        fields = {name: values.pop(name) for name in _field_names(cls) if name in values}
        return cls(**fields, details=values)

    def replace(self, /, **changes: Any) -> Self:
        """Return a copy with some fields or details changed."""
        fields = {name: self[name] for name in _field_names(type(self))}
        return self.make(**{**fields, **self.details, **changes})

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Build a record from parsed JSON; a ValueError names the first field that has the wrong type."""
        if not isinstance(value, dict):
            raise ValueError(f"it is a {type(value).__name__}, not an object")
        values = {str(name): part for name, part in value.items() if name != "details"}
        hints = typing.get_type_hints(cls)
        for name in [name for name in _field_names(cls) if name in values]:
            try:
                values[name] = _convert(values[name], hints[name])
            except TypeError:
                raise ValueError(f"{name} is {str(values[name])[:80]!r}") from None
        required = (f.name for f in dataclasses.fields(cls) if f.default is f.default_factory)  # both MISSING
        if missing := [name for name in required if name not in values]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        return cls.make(**values)

    def to_json(self) -> dict[str, Any]:
        """Return the flat dictionary that a file holds, without the fields that are None."""
        names = [name for name in _field_names(type(self)) if name in self or name in self.NULLABLE]
        return {name: self[name] for name in names} | self.details

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a record from its file; a UserError if the file holds none."""
        value = _read_json(path)
        try:
            return cls.from_json(value)
        except ValueError as error:
            raise UserError(f"{path} cannot be read as a result: {error}") from error

    def write(self, path: Path) -> Path:
        """Write the record as JSON, atomically."""
        write_json(path, self.to_json())
        return path

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name) if name in _field_names(type(self)) else self.details[name]

    def __contains__(self, name: object) -> bool:
        return self.get(str(name)) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field or a detail, or the default where it is missing or None."""
        value = getattr(self, name) if name in _field_names(type(self)) else self.details.get(name)
        return default if value is None else value


@dataclass
class Result(Record):
    """An evaluation of a run."""

    protocol: str
    online: bool = False  # measured by a probe that learned during pre-training
    dataset: str = ""  # name of the images
    data: str | None = None  # name or path to load them from
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

    NULLABLE: typing.ClassVar = ("run_id", "layer", "temperature", "commit")
    # details that hold rows, and the numbers that every row needs
    ROWS: typing.ClassVar = {
        "per_temperature": ("accuracy", "standard_error"),
        "trials": (),
        "path": ("regulariser",),
    }
    NUMBERS: typing.ClassVar = (
        *("accuracy", "standard_error", "standard_deviation", "top5_accuracy", "temperature"),
        *("fraction", "epochs", "regulariser"),
    )

    @classmethod
    def from_json(cls, value: Any) -> Self:
        result = super().from_json(value)
        details = {name: part for name, part in result.details.items() if part is not None}
        grid = details.get("grid", {})
        if not isinstance(grid, dict) or not all(isinstance(values, list) for values in grid.values()):
            raise ValueError("grid is not an object of lists")
        if not isinstance(details.get("changed", {}), dict):
            raise ValueError("changed is not an object")
        checked: list[tuple[dict[str, Any], tuple[str, ...]]] = [(result.details, ())]
        for name, needed in cls.ROWS.items():
            rows = details.get(name, [])
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ValueError(f"{name} is not a list of objects")
            checked += [(row, needed) for row in rows]
        for row, needed in checked:
            for name in cls.NUMBERS:
                value = row.get(name)
                if (value is not None or name in needed) and not is_number(value):
                    raise ValueError(f"{name} is {str(value)[:80]!r}")
        return result


def read_results(run_dir: Path, report: Callable[[list[str]], None]) -> list[Result]:
    """Read the evaluations in a run's ``results`` folder, without JSON files of another form.

    Damaged ones are skipped, and reported in lines.
    """
    results = []
    for path in sorted((run_dir / "results").glob("*.json")):
        value = _read_json(path)
        try:
            results.append(Result.from_json(value))
        except ValueError as error:
            if isinstance(value, dict) and "protocol" in value:
                report([f"{path} is skipped: {error}"])
    return results


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically; a UserError if the disk does not take it."""
    write_file(path, (json.dumps(value, indent=1) + "\n").encode(), "the result")


def percent(correct: float, total: int, top5: float | None = None) -> dict[str, float]:
    """Accuracy in percent and its standard error; with a ``top5`` count, those of the top-5 accuracy too."""
    fields = {}
    for prefix, count in (("", correct), ("top5_", top5)):
        if count is not None:
            p = count / total
            fields[f"{prefix}accuracy"] = 100 * p
            fields[f"{prefix}standard_error"] = 100 * math.sqrt(p * (1 - p) / total)
    return fields


def over_seeds(correct: Sequence[int], total: int, top5: Sequence[int] | None = None) -> dict[str, Any]:
    """Mean accuracy over seeds; with several seeds, also each accuracy and their standard deviation.

    All seeds are tested on the same images, so the standard error is that of one test.
    """
    n = len(correct)
    fields: dict[str, Any] = percent(sum(correct) / n, total, None if top5 is None else sum(top5) / n)
    if n > 1:
        accuracies = [100 * c / total for c in correct]
        fields |= {"seed_accuracies": accuracies, "standard_deviation": statistics.stdev(accuracies)}
    return fields


def packed(correct: Sequence[bool]) -> dict[str, Any]:
    """Which test images are classified correctly, in the order of the set: a bit each, as base64."""
    bits = "".join("01"[right] for right in correct)
    number = int(bits.ljust(-(-len(bits) // 8) * 8, "0") or "0", 2)
    return {"images": len(bits), "bits": base64.b64encode(number.to_bytes(-(-len(bits) // 8))).decode()}


def unpacked(value: Any) -> list[bool] | None:
    """The inverse of ``packed``; None if a file holds anything else."""
    try:
        count, stored = value["images"], base64.b64decode(value["bits"], validate=True)
        if not isinstance(count, int) or len(stored) != -(-count // 8):
            return None
    except (TypeError, KeyError, ValueError):
        return None
    return [byte >> bit & 1 == 1 for byte in stored for bit in range(7, -1, -1)][:count]


def paired_error(one: Any, two: Any) -> float | None:
    """Standard error of a difference in accuracy on the same test images, in percent.

    The arguments are what ``packed`` gave for both; None unless both are known, and of as many images.
    """
    first, second = unpacked(one), unpacked(two)
    if not first or second is None or len(first) != len(second):
        return None
    moved = [b - a for a, b in zip(first, second, strict=True)]
    mean = sum(moved) / len(moved)
    return 100 * math.sqrt(sum((x - mean) ** 2 for x in moved)) / len(moved)


def digest(text: str) -> str:
    """Shorten a path or a list to six hexadecimal digits for a file name."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:6]


def file_word(word: str) -> str:
    """Replace the characters of a name that do not belong into a file name."""
    return re.sub(r"[^A-Za-z0-9._]+", "_", word)


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number that arithmetic can handle."""
    return isinstance(value, int | float) and -LARGEST < value < LARGEST


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as a result: {reason(error)}") from error


def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls) if f.name != "details")


def _convert(value: Any, hint: Any) -> Any:
    """Check that a JSON value has the type of a field, and make objects the records they stand for."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        *first, last = (argument for argument in arguments if argument is not type(None))
        for argument in first:
            with suppress(TypeError, ValueError):
                return _convert(value, argument)
        return _convert(value, last)
    if isinstance(value, dict) and isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json(value)
    if isinstance(value, list) and origin is list:
        return [_convert(item, arguments[0]) for item in value]
    if isinstance(value, dict) and origin is dict:
        return {name: _convert(item, arguments[1]) for name, item in value.items()}
    is_valid = hint is Any or isinstance(value, int | float if hint is float else origin or hint)
    if not is_valid or (hint in (int, float) and not is_number(value)):
        raise TypeError
    return value
