"""The images in tar, parquet and arrow files: where each lies, its name and its label."""

import json
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from simplicia.data.folder import EXTENSIONS
from simplicia.errors import UserError, reason

KINDS = (".tar", ".parquet", ".arrow")
Row = tuple[str, int | str, int, int]  # name, label, size, offset


def rows_of(path: Path, size: int, about: dict[str, Any]) -> Iterator[Row]:
    """The images of a shard of so many bytes; damage, the column of images and classes go to ``about``."""
    return _tar_rows(path, size, about) if path.suffix == ".tar" else _table_rows(path, about)


def _tar_rows(path: Path, size: int, about: dict[str, Any]) -> Iterator[Row]:
    """The images of a tar file: `key.jpg`, whose class is in `key.cls` or `key.json`."""
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, int | str] = {}
    try:
        with tarfile.open(path, "r:") as tar, path.open("rb") as file:
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                stem, _, extension = name.partition(".")
                key, kind = f"{folder}/{stem}" if folder else stem, "." + extension.lower()
                if not member.isreg() or name.startswith("."):
                    continue
                if member.offset_data + member.size > size:
                    raise tarfile.ReadError("unexpected end of data")
                if kind in EXTENSIONS:
                    images[key] = member.name, member.size, member.offset_data
                elif kind in (".cls", ".json") and member.size < 2**16:
                    file.seek(member.offset_data)
                    label = _label(kind, file.read(member.size))
                    if label is not None:
                        labels[key] = label
                tar.members = []  # type: ignore[attr-defined]  # which would grow with the file
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError("it has no end")
    except Exception as error:  # tarfile raises nearly every exception there is
        problem = f"the shard is damaged after {len(images)} images: {reason(error)}"
        about["skipped"].append([path.name, problem])
    for key, (name, length, offset) in images.items():
        yield name, labels.get(key, -1), length, offset


def _label(kind: str, text: bytes) -> int | str | None:
    """The class in a `.cls` or `.json` member: a number from 0 on, or a name."""
    try:
        value = text.decode().strip() if kind == ".cls" else json.loads(text)
        if isinstance(value, dict):
            value = next((value[key] for key in ("label", "cls", "class") if key in value), None)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, str) or (type(value) is int and 0 <= value < 2**31) else None


def _table_rows(path: Path, about: dict[str, Any]) -> Iterator[Row]:
    """The images of a parquet or arrow file as Hugging Face writes them."""
    pa = pyarrow(path.name)
    try:
        if path.suffix == ".parquet":
            yield from _parquet_rows(path, pa.parquet.ParquetFile(path), about)
        else:
            yield from _arrow_rows(path, pa, about)
    except (pa.ArrowException, OSError) as error:
        about["skipped"].append([path.name, f"the table is damaged: {reason(error)}"])


def _parquet_rows(path: Path, file: Any, about: dict[str, Any]) -> Iterator[Row]:
    _, label = _columns(path, file.schema_arrow, about)
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        labels = file.read_row_group(group, columns=[label]).column(0).to_pylist() if label else [-1] * count
        for row, value in enumerate(labels):
            yield f"{path.name}:{group}:{row}", _table_label(value), row, group


def _arrow_rows(path: Path, pa: Any, about: dict[str, Any]) -> Iterator[Row]:
    mapped = pa.memory_map(str(path))
    everything = mapped.read_buffer(mapped.size())
    opener = pa.ipc.open_file if bytes(everything[:6]) == b"ARROW1" else pa.ipc.open_stream
    reader = opener(everything)
    image, label = _columns(path, reader.schema, about)
    is_file = hasattr(reader, "num_record_batches")
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
    row = 0
    for batch in batches:
        column = _image_bytes(batch.column(image))
        wide = pa.types.is_large_binary(column.type)
        _, ends, data = column.buffers()
        start = 0 if data is None else data.address - everything.address
        if not 0 <= start < len(everything):
            raise UserError(f"{str(path)!r} is compressed; save it uncompressed, or as parquet")
        bounds = np.frombuffer(ends, np.int64 if wide else np.int32)[column.offset :][: len(column) + 1]
        labels = batch.column(label).to_pylist() if label else [-1] * len(column)
        for value, begin, end in zip(labels, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            yield f"{path.name}:{row}", _table_label(value), end - begin, start + begin
            row += 1


def _table_label(value: Any) -> int | str:
    return value if isinstance(value, str) or (type(value) is int and 0 <= value < 2**31) else -1


def _columns(path: Path, schema: Any, about: dict[str, Any]) -> tuple[str, str | None]:
    """The columns of images and of labels, and the names of the classes if the table has them."""
    import pyarrow.types as types

    def holds_images(kind: Any) -> bool:
        if types.is_struct(kind):
            return any(
                kind.field(i).name == "bytes" and holds_images(kind.field(i).type)
                for i in range(kind.num_fields)
            )
        return types.is_binary(kind) or types.is_large_binary(kind)

    once = [field for field in schema if schema.names.count(field.name) == 1]
    image = next((field.name for field in once if holds_images(field.type)), None)
    if image is None:
        raise UserError(f"{str(path)!r} has no column of images; its columns are {', '.join(schema.names)}")
    if about.setdefault("column", image) != image:
        raise UserError(
            f"{str(path)!r} has its images in column {image!r}, other files in {about['column']!r}"
        )
    known = {field.name for field in once}
    names = [name for name in ("label", "labels", "fine_label", "cls", "class") if name in known]
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        about.setdefault("names", [str(name) for name in features[names[0]]["names"]] if names else None)
    return image, names[0] if names else None


def _image_bytes(column: Any) -> Any:
    """The bytes of a column of images, which may have paths too."""
    import pyarrow.types as types

    return column.field("bytes") if types.is_struct(column.type) else column


def image_bytes(parquet: Path, group: int, column: str) -> Any:
    """The encoded images of a group of rows of a parquet file."""
    file = pyarrow(parquet.name).parquet.ParquetFile(parquet)
    return _image_bytes(file.read_row_group(group, columns=[column]).column(0).combine_chunks())


def pyarrow(name: str) -> Any:
    """The package that reads and writes the tables of a file; a UserError without it."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{name!r} needs pyarrow, which is not installed; pip install 'simplicia[parquet]'"
        ) from None
    return pyarrow
