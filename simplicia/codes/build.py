"""Encode image files as rows of an index, a batch at a time: a killed process loses seconds of work."""

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from simplicia.codes.bits import dtype_of
from simplicia.codes.store import SIDE, About, Model, Table, read
from simplicia.data.decoding import THREADS, attempt, explain, read_ahead
from simplicia.data.folder import EXTENSIONS, list_images
from simplicia.errors import UserError
from simplicia.progress import Progress
from simplicia.representation import represent
from simplicia.run import Run

BATCH = 256  # images encoded at a time
MOST_ROWS, MOST_SECONDS = 8192, 20.0  # of work that a kill may lose


class File(NamedTuple):
    """An image file: its name in the index, its path, and its size and time of change."""

    name: str
    path: Path
    stamp: tuple[int, int]


class Seen(NamedTuple):
    """What is read of a file: its pixels for the encoder, its look, and a digest of its bytes."""

    pixels: np.ndarray
    look: np.ndarray
    content: bytes


def model_of(run: Run) -> Model:
    """The model of a run; the digest is of the weights behind its codes and of how it sees images."""
    run.check_layer("codes")
    network, recipe = run.network(), run.recipe
    sizes = [recipe.image_size, recipe.actual_decode_size, run.state["mean"], run.state["std"]]
    digest = hashlib.sha256(json.dumps(sizes).encode())
    parts: tuple[Any, ...] = network.encoder, network.bottleneck
    for part in parts:
        for name, tensor in sorted(part.state_dict().items()):
            array = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {array.dtype} {tuple(array.shape)}".encode())
            digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    folder, identity = str(run.path.resolve()), run.state.get("id")
    return Model(folder, recipe.name, recipe.image_size, digest.hexdigest(), identity)


def list_files(images: Path, folder: Path) -> tuple[list[File], list[tuple[str, str]]]:
    """The image files below a folder, or one image, and what is skipped.

    Names are relative to the index's ``folder``, or absolute outside of it.
    """
    if images.is_file():
        paths, skipped = [images.resolve()], []
    elif images.is_dir():
        listing, base = list_images(images), images.resolve()
        paths = [base / path.relative_to(images) for path in listing.files]
        skipped = [(str(path), reason) for path, reason in listing.skipped]
    else:
        raise UserError(f"there is no folder or image {str(images)!r}")
    if not paths:
        raise UserError(f"there is no image in {str(images)!r}; images are {' '.join(EXTENSIONS)}")
    files = []
    for path in paths:
        try:
            about = path.stat()
        except OSError as error:  # it vanished meanwhile
            skipped.append((str(path), error.strerror or "cannot be read"))
            continue
        name = path.relative_to(folder) if path.is_relative_to(folder) else path
        files.append(File(name.as_posix(), path, (about.st_size, about.st_mtime_ns)))
    return files, skipped


def encode_files(
    run: Run, files: Sequence[File], about: About, parts: Path, quiet: bool
) -> tuple[list[Table], list[tuple[str, str]]]:
    """Encode files into tables below ``parts``; returns all tables there, and the skipped files.

    Files in the tables of a killed process are not encoded again.
    """
    parts.mkdir(parents=True, exist_ok=True)
    tables = []
    for path in sorted(parts.glob("part-*")):
        table = read(path)
        model = table.about.model
        if model.digest != about.model.digest:
            raise UserError(
                f"{str(parts)!r} holds the unfinished index of another run, {model.run}; remove it, or give "
                "another --out"
            )
        if (table.about.folder, table.about.simplices) != (about.folder, about.simplices):
            path.unlink()  # of other work with the same index
            continue
        tables.append(table)
    done = {(name, *stamp) for t in tables for name, stamp in zip(t.names(), t.stamps.tolist(), strict=True)}
    left = [file for file in files if (file.name, *file.stamp) not in done]
    skipped: list[tuple[str, str]] = []
    rows: list[tuple[File, Seen, np.ndarray]] = []
    saved, count, size = time.monotonic(), len(files) - len(left), run.recipe.actual_decode_size
    with closing(Progress("encoding", len(files), count, quiet)) as bar:
        for batch in read_ahead(lambda file: (file, attempt(see, file.path, size)), left, BATCH, THREADS):
            count += len(batch)
            good = []
            for file, seen in batch:
                if isinstance(seen, Exception):
                    skipped.append((file.name, explain(seen)))
                else:
                    good.append((file, seen))
            if good:
                codes = _codes(run, np.stack([seen.pixels for _, seen in good]))
                columns = codes[:, about.simplices]
                rows += [(*both, row) for both, row in zip(good, columns, strict=True)]
            bar.update(count, f"{len(skipped)} skipped" if skipped else "images")
            late = len(rows) >= MOST_ROWS or time.monotonic() - saved > MOST_SECONDS
            if rows and (late or count == len(files)):
                path = parts / f"part-{secrets.token_hex(16)}"
                _table(about, rows).write(path)
                tables.append(read(path))
                rows, saved = [], time.monotonic()
    return tables, skipped


def _table(about: About, rows: list[tuple[File, Seen, np.ndarray]]) -> Table:
    return Table.of(
        about,
        [file.name for file, _, _ in rows],
        np.stack([codes for *_, codes in rows]),
        stamps=np.array([file.stamp for file, _, _ in rows], dtype=np.int64),
        content=np.stack([np.frombuffer(seen.content, dtype=np.uint8) for _, seen, _ in rows]),
        looks=np.stack([seen.look for _, seen, _ in rows]),
    )


def see(path: Path, size: int) -> Seen:
    """Read a file."""
    from simplicia.data.image_files import Image, decode

    with path.open("rb") as file:
        content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
    pixels, _ = decode(path, size)
    grey = Image.fromarray(pixels).convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return Seen(pixels.transpose(2, 0, 1), np.asarray(grey).reshape(-1), content)


@torch.no_grad()
def _codes(run: Run, pixels: np.ndarray) -> np.ndarray:
    """The codes of images (N, 3, H, W) in small integers."""
    network: Any = run.network()
    features = network.encoder(run.view(torch.from_numpy(pixels)))
    if not features.isfinite().all():
        raise UserError(f"{run.path} gives features that are not finite; its training diverged")
    codes = represent(network, features, "codes").cpu().numpy()
    return codes.astype(dtype_of(network.bottleneck.vertices))
