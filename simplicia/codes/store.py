"""The file of an index: arrays in the safetensors format, which are mapped into memory, never read as a unit.

    codes      (words * bits, N) uint64   planes of the chosen simplices, see ``bits``
    name_ends  (N,) int64                 where each name ends in ``names``
    stamps     (N, 2) int64               size and time of change of each file
    content    (N, 16) uint8              a digest of each file
    looks      (N, 256) uint8             each image in 16 x 16 levels of grey
    names      (bytes,) uint8             the names, UTF-8

The metadata hold an ``About``. A file is written next to its name and then renamed.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from simplicia.codes.bits import bits_of, pack, unpack, words_of
from simplicia.errors import UserError
from simplicia.files import atomic_write
from simplicia.result import Record

VERSION = 1
SIDE = 16  # pixels of an image's look
KEY = "simplicia.index"
BATCH = 16384  # images copied at a time
MOST_VERTICES, MOST_SIMPLICES = 2**16, 2**31
TYPES = {"<u8": "U64", "<i8": "I64", "|u1": "U8"}
ARRAYS = {
    "codes": "<u8", "name_ends": "<i8", "stamps": "<i8", "content": "|u1", "looks": "|u1", "names": "|u1"
}  # fmt: skip


@dataclass
class Model(Record):
    """The model whose codes an index holds; ``digest`` is of its weights and of how it sees images."""

    run: str  # its folder
    name: str
    image_size: int
    digest: str
    id: str | None = None


@dataclass
class About(Record):
    """What an index says about itself."""

    version: int
    model: Model
    folder: str  # names are relative to it
    total: int  # simplices of the model
    vertices: int
    simplices: list[int] = field(default_factory=list)  # those that are kept, most informative first


@dataclass
class Table:
    """Images and their codes: the arrays of a file, or some new rows of them."""

    about: About
    codes: np.ndarray
    stamps: np.ndarray
    content: np.ndarray
    looks: np.ndarray
    name_ends: np.ndarray
    name_bytes: np.ndarray

    def __len__(self) -> int:
        return self.codes.shape[1]

    @classmethod
    def of(cls, about: About, names: Sequence[str], codes: np.ndarray, **arrays: np.ndarray) -> "Table":
        """A table of new rows, from codes (N, simplices)."""
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        text = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        planes = pack(codes, about.vertices)
        return cls(about, planes, name_ends=ends, name_bytes=text, **arrays)

    def names(self, rows: Iterable[int] | None = None) -> list[str]:
        """The names of some rows, or of all."""
        text, ends = self.name_bytes, self.name_ends
        if rows is None:
            whole, bounds = text.tobytes(), [0, *ends.tolist()]
            parts = (whole[a:b] for a, b in pairwise(bounds))
        else:
            parts = (text[(ends[i - 1] if i else 0) : ends[i]].tobytes() for i in rows)
        return [part.decode("utf-8", "surrogateescape") for part in parts]

    def unpacked(self, rows: Any = slice(None)) -> np.ndarray:
        """The codes (n, simplices) of some rows."""
        codes = unpack(self.codes[:, rows], len(self.about.simplices), self.about.vertices)
        if codes.size and codes.max() >= self.about.vertices:
            raise UserError(f"the index is damaged: a code is {codes.max()} of {self.about.vertices}")
        return codes

    def batches(self, rows: np.ndarray, columns: np.ndarray | None) -> Iterator["Table"]:
        """Some rows, a batch at a time, with all simplices or with those of ``columns``."""
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            codes = self.codes[:, part]
            if columns is not None:
                codes = pack(self.unpacked(part)[:, columns], self.about.vertices)
            arrays = self.stamps[part], self.content[part], self.looks[part]
            begins = np.where(part > 0, self.name_ends[part - 1], 0)
            lengths = self.name_ends[part] - begins
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            text = self.name_bytes[np.repeat(begins, lengths) + within]
            yield Table(self.about, codes, *arrays, np.cumsum(lengths), text)

    def write(self, path: Path) -> None:
        write(path, self.about, [(self, np.arange(len(self)), None)])


Source = tuple[Table, np.ndarray, np.ndarray | None]  # rows of a table, and which of its simplices, or all


def write(path: Path, about: About, sources: Sequence[Source]) -> None:
    """Write rows of tables to one file, atomically and a batch at a time."""
    count = sum(len(rows) for _, rows, _ in sources)
    text = sum(_bytes_of_names(table, rows) for table, rows, _ in sources)
    shapes = _shapes(about, count, text)
    header: dict[str, Any] = {"__metadata__": {KEY: json.dumps(about.to_json(), default=Record.to_json)}}
    start, begins = 0, {}
    for name, dtype in ARRAYS.items():
        size = int(np.prod(shapes[name], dtype=np.int64)) * np.dtype(dtype).itemsize
        header[name] = {"dtype": TYPES[dtype], "shape": shapes[name], "data_offsets": [start, start + size]}
        begins[name], start = start, start + size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with atomic_write(path) as temporary, temporary.open("r+b") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        first, done, named = file.tell(), 0, 0
        for table, rows, columns in sources:
            for part in table.batches(rows, columns):
                for i, plane in enumerate(part.codes):
                    file.seek(first + begins["codes"] + 8 * (i * count + done))
                    file.write(plane.astype("<u8").tobytes())
                for name, array, at in (
                    ("name_ends", (part.name_ends + named).astype("<i8"), 8 * done),
                    ("stamps", part.stamps.astype("<i8"), 16 * done),
                    ("content", part.content, 16 * done),
                    ("looks", part.looks, SIDE * SIDE * done),
                    ("names", part.name_bytes, named),
                ):
                    file.seek(first + begins[name] + at)
                    file.write(array.tobytes())
                done, named = done + len(part), named + len(part.name_bytes)
        file.truncate(first + start)


def read(path: Path) -> Table:
    """Map an index file; a UserError if it is none, or truncated."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        reason = "it is not a file" if path.exists() else "there is no such file"
        raise UserError(f"the index {str(path)!r} cannot be opened: {reason}; make one with simplicia index")
    try:
        with safe_open(path, "pt") as file:  # maps the file, and checks its header and size
            metadata = file.metadata() or {}
            if KEY not in metadata:
                raise ValueError("it holds other tensors")
            about = About.from_json(json.loads(metadata[KEY]))
            arrays = {name: file.get_tensor(name).numpy() for name in ARRAYS}
    except OSError as error:
        raise UserError(f"the index {str(path)!r} cannot be opened: {error.strerror or error}") from error
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{str(path)!r} is no index, or a truncated one ({error}); make one with simplicia index"
        ) from error
    if about.version != VERSION:
        raise UserError(f"{str(path)!r} is an index of version {about.version}; this version reads {VERSION}")
    kept, ends, text = about.simplices, arrays["name_ends"], arrays["names"].size
    valid = (
        min(ends.size, text) > 0
        and {name: list(array.shape) for name, array in arrays.items()} == _shapes(about, ends.size, text)
        and {name: array.dtype.str for name, array in arrays.items()} == ARRAYS
        and len(set(kept)) == len(kept) > 0
        and all(0 <= i < about.total <= MOST_SIMPLICES for i in kept)
        and 0 < about.vertices <= MOST_VERTICES
        and bool((np.diff(ends, prepend=0) >= 0).all())
        and ends[-1] == text
    )
    if not valid:
        raise UserError(f"the index {str(path)!r} is damaged; make it again with simplicia index")
    return Table(about, name_bytes=arrays.pop("names"), **arrays)


def _shapes(about: About, count: int, text: int) -> dict[str, list[int]]:
    """The shape of each array of so many images, whose names have ``text`` bytes."""
    planes = words_of(len(about.simplices)) * bits_of(about.vertices)
    rows = {"name_ends": [count], "stamps": [count, 2], "content": [count, 16], "looks": [count, SIDE**2]}
    return {"codes": [planes, count], **rows, "names": [text]}


def _bytes_of_names(table: Table, rows: np.ndarray) -> int:
    ends = table.name_ends
    return int((ends[rows] - np.where(rows > 0, ends[rows - 1], 0)).sum()) if len(rows) else 0
