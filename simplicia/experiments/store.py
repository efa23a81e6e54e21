"""The results of experiments: a JSON list per experiment, one object per cell that was measured."""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from simplicia.errors import UserError
from simplicia.files import locked, write_errors
from simplicia.result import Record, is_number, write_json


@dataclass
class CellResult(Record):
    """One number of a table or one curve of a figure, and how it was measured."""

    cell: str  # the cell's name, then the part's
    experiment: str | None = None
    part: str | None = None  # of a measurement with several results
    dataset: str | None = None  # the images it was measured on
    pretrained_on: str | None = None
    encoder: str | None = None
    method: str | None = None
    bottleneck: str | None = None
    sem: bool | None = None
    recipe: str | None = None
    changes: dict[str, Any] | None = None  # of settings of that recipe
    epochs: int | None = None
    batch_size: int | None = None
    seed: int | None = None
    accuracy: float | None = None  # percent
    standard_error: float | None = None  # of the test images
    paper: float | None = None  # the paper's accuracy
    protocol: str | None = None  # "diverged" or "failed": see ``failed``
    probe: str | None = None  # name of its settings
    online: bool = False
    layer: str | None = None
    temperature: float | None = None
    selected: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None  # of pre-training
    probe_seconds: float | None = None  # of the measurement
    device: str | None = None
    trained_by: list[dict[str, Any]] | None = None
    run: str | None = None  # name of the run's folder
    failed: str | None = None  # why there is no result
    minutes: float | None = None  # the time the command had, if the measurement takes longer
    note: str | None = None
    commit: str | None = None

    NULLABLE: ClassVar = (
        *("dataset", "pretrained_on", "encoder", "method", "epochs", "batch_size", "seed", "accuracy"),
        *("standard_error", "paper", "protocol", "probe", "layer", "temperature", "seconds"),
        *("probe_seconds", "device"),
    )

    @classmethod
    def from_json(cls, value: Any) -> Self:
        result = super().from_json(value)
        for name, detail in result.details.items():
            if isinstance(detail, int | float) and not is_number(detail):
                raise ValueError(f"{name} is {str(detail)[:80]!r}")
        return result

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal in this: the same cell, measured again."""
        budget = self.epochs, self.batch_size, self.seed
        where = self.experiment, self.cell, self.dataset, self.pretrained_on
        return (*where, *budget, self.protocol, self.probe)

    def supersedes(self, other: "CellResult") -> bool:
        """Whether an earlier failure, of this cell or of a run that diverged, no longer holds."""
        if self.failed is not None or other.failed is None or self.run != other.run:
            return False
        return other.protocol == "diverged" or self.cell.removesuffix(f", {self.part}") == other.cell


def read(path: Path) -> list[CellResult]:
    """The results of an experiment; none if nothing was measured yet."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as results: {str(error).splitlines()[0]}") from error
    if not isinstance(rows, list):
        raise UserError(f"{path} does not hold results: it must be a list of objects with a cell's name")
    results = []
    for number, row in enumerate(rows, 1):
        try:
            results.append(CellResult.from_json(row))
        except ValueError as error:
            raise UserError(f"{path} is damaged: in object {number}, {error}") from error
    return results


def put(path: Path, results: list[CellResult]) -> None:
    """Replace the results of the same cells; all others stay, also those other processes write meanwhile."""
    with write_errors("results", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock")):
            new = {result.identity: result for result in results}
            old = [row for row in read(path) if not any(result.supersedes(row) for result in results)]
            merged = [new.pop(row.identity, row) for row in old] + list(new.values())
            write_json(path, [row.to_json() for row in merged])


def check(path: Path) -> None:
    """Raise a UserError if results cannot be added to a file: before hours of training, not after."""
    read(path)
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    with write_errors("results", path), tempfile.TemporaryFile(dir=parent):
        pass
