"""Files that a stranger might hand us: images, arrays, recipes, results, checkpoints; each from a seed."""

import copy
import io
import json
import pickle
import random
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

STRINGS = ["", "x", "\x00", "\x1b]0;PWN\x07", "a\nsimplicia: all is well", "../../etc", "/dev/null", "é" * 40]
STRINGS += ["x" * 5000, "\ud800", "%s %n {0} $(id)", "<script>alert(1)</script>", "nan", "-", "--"]
NUMBERS = [0, -1, 1, 2, 1e300, -1e300, 1e-320, float("nan"), float("inf"), 2**31, 2**63 - 1, 10**30, 0.5]
VALUES = [*STRINGS, *NUMBERS, None, True, [], {}, [[]], [1, "a"], {"a": {"b": []}}, [0] * 1000]


class Bomb:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def png(width: int, height: int, depth: int = 8, colour: int = 2, data: bytes = b"") -> bytes:
    """A PNG with any header, whatever its data."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width % 2**32, height % 2**32, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


def image(rng: random.Random) -> tuple[str, bytes]:
    """A name and the bytes of an image file, most of them damaged."""
    kind = rng.choice(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "header", "noise", "empty"])
    if kind == "header":
        sizes = (0, 1, 7, 65535, 2**31 - 1, 2**32 - 1)
        content = png(rng.choice(sizes), rng.choice(sizes), rng.choice((1, 8, 16)), rng.choice((0, 2, 3, 6)))
    elif kind in ("noise", "empty"):
        content = rng.randbytes(rng.randrange(1, 400)) if kind == "noise" else b""
    else:
        mode = rng.choice({"GIF": ["L"], "BMP": ["L", "RGB"]}.get(kind, ["L", "RGB"]))
        shape = (rng.randrange(1, 40), rng.randrange(1, 40))
        buffer = io.BytesIO()
        pixels = rng.randbytes(shape[0] * shape[1])
        Image.frombytes("L", shape, pixels).convert(mode).save(buffer, kind)
        content = damaged(rng, buffer.getvalue())
    ending = rng.choice(["png", "jpg", "gif", "bmp", "tif", "webp", "PNG", "heic"])
    stem = rng.choice(["a", "b b", "ü", "\x1b]0;PWN\x07x\nsimplicia: all is well", "-rf", "x" * 200, "%s"])
    return f"{stem}-{rng.randrange(10**6)}.{ending}", content


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Bytes as they were, cut off, with changed bytes, or with something inserted."""
    data, how = bytearray(content), rng.randrange(4)
    if how == 1:
        del data[rng.randrange(len(data) + 1) :]
    elif how == 2:
        for _ in range(rng.randrange(1, 10)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif how == 3:
        at = rng.randrange(len(data) + 1)
        data[at:at] = rng.randbytes(rng.randrange(1, 50))
    return bytes(data)


def array(rng: random.Random, bomb: Path) -> bytes:
    """A .npy file, most of them with a header that does not fit."""
    buffer = io.BytesIO()
    how = rng.randrange(5)
    if how == 0:  # object arrays are pickles
        np.save(buffer, np.array([Bomb(bomb)], dtype=object), allow_pickle=True)
        return buffer.getvalue()
    shape: tuple[int, ...] = (20, 16, 16, 3)
    np.save(buffer, np.zeros(shape, rng.choice(["u1", "f4", "i8", "c8", "U3", "b1"])))
    if how == 1:
        return damaged(rng, buffer.getvalue())
    if how == 2:
        return pickle.dumps(Bomb(bomb))
    other = rng.choice(["(-5, 32, 32, 3)", "(2**40, 3)", "()", "(9223372036854775807,)", "(20, 16)", "None"])
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {other}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(100)


def tensors(rng: random.Random, content: bytes) -> bytes:
    """A safetensors file with another header, other metadata or other numbers, or damaged as bytes."""
    size = 8 + int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8:size]), bytearray(content[size:])
    about = header.get("__metadata__", {})
    how = rng.choice([0, 1, 2, 3] if about else [0, 2, 3])
    if how == 0:
        return damaged(rng, content)
    if how == 1:
        key = rng.choice([key for key, text in about.items() if text[:1] == "{"])
        about[key] = changed_json(rng, about[key])
    for _ in range(rng.randrange(1, 4) if how == 2 else 0):
        at = 8 * rng.randrange(len(data) // 8)
        data[at : at + 8] = struct.pack("<q", rng.choice([-1, 0, 2**31, 2**62, 0x7FC000007FC00000]))
    text = (changed_json(rng, json.dumps(header)) if how == 3 else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


def shard(rng: random.Random, content: bytes) -> bytes:
    """A tar file with another member, without its end, or damaged."""
    if rng.random() < 0.5:
        return damaged(rng, content)
    name, text = rng.choice(
        [("9.cls", "-1"), ("0.cls", "2147483648"), ("0.json", "[" * 5000), ("0.cls", "é\x1b")]
    )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo(rng.choice([name, f"../{name}", f"/etc/{name}", "\x1b]0;PWN\x07.png"]))
        member.size = len(text.encode())
        member.type = rng.choice(
            [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.SYMTYPE]
        )
        tar.addfile(member, io.BytesIO(text.encode()))
    new = bytearray(buffer.getvalue()[: rng.choice([512, 1024])])
    if rng.random() < 0.3:  # a size that the file does not have
        new[124:136] = rng.choice(
            [b"77777777777\0", b"\x80" + bytes(3) + b"\x7f" + bytes(7), b"-0000000001\0"]
        )
        new[148:156] = f"{sum(new[:148]) + 8 * 32 + sum(new[156:512]):06o}\0 ".encode()
    return bytes(new) * rng.choice([1, 1, 2000]) + content


def changed_json(rng: random.Random, text: str) -> str:
    """JSON with a value replaced, removed or added somewhere, or damaged as text."""
    if rng.random() < 0.2:
        return damaged(rng, text.encode()).decode(errors="replace")
    if rng.random() < 0.05:
        return rng.choice(["[" * 100_000, "null", "[]", "{}", "1e999", '"x"', ""])
    value = json.loads(text)
    for _ in range(rng.randrange(1, 4)):
        node = value
        while isinstance(node, dict | list) and node:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = rng.choice(keys)
            if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.7:
                node = node[key]
                continue
            if rng.random() < 0.2:
                del node[key]
            else:
                node[key] = copy.deepcopy(rng.choice(VALUES))  # it may be changed next
            break
    return json.dumps(value)


def changed_yaml(rng: random.Random, text: str) -> str:
    """A recipe with a line changed, removed or doubled, or damaged as text."""
    if rng.random() < 0.2:
        return damaged(rng, text.encode()).decode(errors="replace")
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    how = rng.randrange(4)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines.insert(
            at,
            rng.choice(["&a [*a]", "<<: *b", "!!python/object/apply:os.system ['true']", "? ? ?", lines[at]]),
        )
    else:
        value = rng.choice(VALUES)
        text = value if isinstance(value, str) and rng.random() < 0.5 else json.dumps(value)
        lines[at] = f"{lines[at].partition(':')[0]}: {text}"
    return "\n".join(lines)
