"""CIFAR-10 and CIFAR-100 from their "python version" files, which are pickles.

A pickle is a program, and unpickling runs it. `_interpret` is a safe interpreter of that language, limited to
dicts, lists, tuples, strings, small integers and uint8 arrays: it never imports or calls what a file names,
and the size of the file bounds what it builds.
"""

import pickletools
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simplicia.data.datasets import ImageSet, ReadOptions, dataset
from simplicia.errors import UserError, reason

_FOLDER = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
_META = {"cifar10": "batches.meta", "cifar100": "meta"}
_PARTS = {
    ("cifar10", "train"): [f"data_batch_{i}" for i in range(1, 6)],
    ("cifar10", "test"): ["test_batch"],
    ("cifar100", "train"): ["train"],
    ("cifar100", "test"): ["test"],
}
_MOST_BYTES = 400_000_000  # the largest real file has 155 million bytes; rewritten by Python 3, 240
_MOST_OPCODES = 5_000_000  # and about half a million opcodes
_HINT = "simplicia pretrain --download fetches it"  # not every verb does


def _read(name: str, split: str, options: ReadOptions) -> ImageSet:
    needs, root = f"{name} needs {_FOLDER[name]} below --data-dir or SIMPLICIA_DATA", options.data_dir
    if root is None:
        raise UserError(f"{needs}, and neither is given; {_HINT} there")
    needed = [root / _FOLDER[name] / file for file in [*_PARTS[name, split], _META[name]]]
    if options.download and not all(path.is_file() for path in needed):
        _download(name, root)
    for path in needed:
        if not path.is_file():
            raise UserError(f"{needs}, and there is no {str(path)!r}; {_HINT}")

    *parts, meta = ((path, _read_dict(path)) for path in needed)
    fine, coarse = ("fine_labels", "coarse_labels") if name == "cifar100" else ("labels", None)
    classes = _names(*meta, "fine_label_names" if coarse else "label_names")
    images = np.concatenate([_pixels(*part) for part in parts])
    labels = np.concatenate([_labels(*part, fine, len(classes)) for part in parts])
    result = ImageSet(name, torch.from_numpy(images), torch.from_numpy(labels), classes)
    if not coarse:
        return result
    superclasses = _names(*meta, "coarse_label_names")
    coarse_labels = _labels(*parts[0], coarse, len(superclasses))
    superclass = np.full(len(classes), -1, dtype=np.int64)
    superclass[labels] = coarse_labels
    if (superclass[labels] != coarse_labels).any() or (superclass < 0).any():
        raise UserError(f"{str(needed[0])!r} does not give each of {len(classes)} classes one superclass")
    return replace(result, superclass=torch.from_numpy(superclass), superclasses=superclasses)


for _name, _content, _statistics in (
    ("cifar10", "10 classes", ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    ("cifar100", "100 classes in 20 superclasses", ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))),
):
    _details = {"where": "--data-dir or --download", "image_size": 32, "statistics": _statistics}
    dataset(_name, f"{_content}, 32 px", **_details)(partial(_read, _name))


def _download(name: str, root: Path) -> None:
    from torchvision import datasets

    try:
        root.mkdir(parents=True, exist_ok=True)
        (datasets.CIFAR100 if name == "cifar100" else datasets.CIFAR10)(str(root), download=True)
    except Exception as error:  # no network, a full disk, no permission, a broken archive
        raise UserError(f"{name} could not be downloaded to {str(root)!r}: {error}") from error


def _read_dict(path: Path) -> dict[str, Any]:
    try:
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise ValueError(f"it has {size:,} bytes, and no CIFAR file has more than {_MOST_BYTES:,}")
        content = _expect(_interpret(path.read_bytes()), dict)
    except Exception as error:  # a broken or hostile file may fail in any way
        raise UserError(f"{str(path)!r} cannot be read as a CIFAR file: {reason(error)}") from error
    return {_text(key): v.values if isinstance(v, _Array) else v for key, v in content.items()}


def _pixels(path: Path, content: dict[str, Any]) -> np.ndarray:
    data = content.get("data")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072 or not len(data):
        actual = f"shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise UserError(f"'data' in {str(path)!r} is a uint8 array of shape (N, 3072), not {actual}")
    return data.reshape(-1, 3, 32, 32)


def _labels(path: Path, content: dict[str, Any], key: str, count: int) -> np.ndarray:
    labels, images = content.get(key), len(content["data"])
    if not isinstance(labels, list) or len(labels) != images:
        raise UserError(f"{key!r} in {str(path)!r} is a list of {images} labels, one for each image")
    if not all(type(label) is int and 0 <= label < count for label in labels):
        raise UserError(f"{key!r} in {str(path)!r} are whole numbers from 0 to {count - 1}")
    return np.array(labels, dtype=np.int64)


def _names(path: Path, content: dict[str, Any], key: str) -> tuple[str, ...]:
    names = content.get(key)
    if not isinstance(names, list) or not names or not all(isinstance(name, (str, bytes)) for name in names):
        raise UserError(f"{key!r} in {str(path)!r} is a list of names")
    return tuple(_text(name) for name in names)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


class _Global(Enum):
    """The names a file may mention, as pickletools spells them. They are only ever compared."""

    NDARRAY = "numpy ndarray"
    DTYPE = "numpy dtype"
    RECONSTRUCT = "numpy.core.multiarray _reconstruct"
    RECONSTRUCT_NUMPY2 = "numpy._core.multiarray _reconstruct"
    ENCODE = "_codecs encode"  # how Python 3 writes bytes in protocol 2

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"it names {value!r}, which is no part of a uint8 array")


class _Array:
    """A uint8 array, which a pickle first makes empty (REDUCE) and then fills (BUILD)."""

    values: np.ndarray | None = None


class _UInt8:
    """The only dtype there is."""


def _interpret(data: bytes) -> Any:
    """The value of a pickle of protocol 2 or 3; the strings of Python 2 come as bytes."""
    stack: list[Any] = []
    marks: list[int] = []  # heights of the stack
    memo: dict[int, Any] = {}
    encoded = 0

    def take(height: int) -> list[Any]:
        if height < 0:
            raise ValueError("its stack is too short")
        items = stack[height:]
        del stack[height:]
        return items

    arg: Any
    for count, (opcode, arg, _) in enumerate(pickletools.genops(data)):
        if count > _MOST_OPCODES:
            raise ValueError(f"it has more than {_MOST_OPCODES:,} opcodes")
        match opcode.name:
            case "BININT" | "BININT1" | "BININT2" | "BINUNICODE" | "BINBYTES" | "SHORT_BINBYTES":
                stack.append(arg)
            case "BINPUT" | "LONG_BINPUT":
                memo[arg] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[arg])
            case "BINSTRING" | "SHORT_BINSTRING":
                stack.append(arg.encode("latin-1"))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
            case "EMPTY_LIST" | "EMPTY_DICT" | "EMPTY_TUPLE":
                stack.append({"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}[opcode.name]())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(take(len(stack) - int(opcode.name[-1]))))
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(take(marks.pop())))
            case "APPEND" | "APPENDS":
                items = take(marks.pop() if opcode.name == "APPENDS" else len(stack) - 1)
                _expect(stack[-1], list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = take(marks.pop() if opcode.name == "SETITEMS" else len(stack) - 2)
                for key, value in zip(items[::2], items[1::2], strict=True):
                    # No other keys: to hash a tuple of tuples of tuples can overflow the stack of C.
                    _expect(stack[-1], dict)[_expect(key, str, bytes)] = value
            case "GLOBAL":
                stack.append(_Global(arg))
            case "REDUCE":
                function, arguments = take(len(stack) - 2)
                stack.append(_reduce(function, _expect(arguments, tuple)))
                if function is _Global.ENCODE:
                    # A pickler writes each string once; one string again and again would fill the memory.
                    encoded += len(stack[-1])
                    if encoded > len(data):
                        raise ValueError("it holds more bytes than it has")
            case "BUILD":
                (state,) = take(len(stack) - 1)
                _build(stack[-1], _expect(state, tuple))
            case "PROTO" | "STOP":
                pass
            case other:
                raise ValueError(f"the opcode {other} has no place in it")
    (value,) = stack
    return value


def _reduce(function: Any, arguments: tuple[Any, ...]) -> Any:
    match function, arguments:
        case ((_Global.RECONSTRUCT | _Global.RECONSTRUCT_NUMPY2), (_Global.NDARRAY, (0,), b"b")):
            return _Array()
        case _Global.DTYPE, ("u1" | b"u1", 0, 1):
            return _UInt8()
        case _Global.ENCODE, (str(text), "latin1"):
            return text.encode("latin-1")
    raise ValueError("it makes a call that makes neither bytes nor a uint8 array")


def _build(target: Any, state: tuple[Any, ...]) -> None:
    match target, state:
        case _UInt8(), _:
            pass  # byte order and alignment, which bytes do not have
        case _Array(), (1, tuple(shape), _UInt8(), 0 | 1 as fortran, bytes(raw)):
            target.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")
        case _:
            raise ValueError("it gives a state to what is no uint8 array")


def _expect(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise ValueError(f"it has a {type(value).__name__} in place of a {kinds[0].__name__}")
    return value
