"""Pages of an index of images: the results of a search, and groups of duplicates.

Each is one HTML file without scripts that needs no network and no other file: thumbnails are embedded.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from simplicia.codes import Group, Index, Neighbours, Vertex
from simplicia.files import write_file
from simplicia.report.page import render

SIDE = 128  # pixels of a thumbnail's longer side
MOST_GROUPS = 400  # on a page
MOST_IMAGES = 24  # of a group on a page
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass
class Picture:
    """An image with its name and some words; without ``source`` its file is gone or cannot be read."""

    name: str
    source: str | None
    words: list[str]
    share: float = 0.0  # of simplices that agree
    simplices: str = ""


def write_search(
    index: Index,
    query: str | Path | None,
    found: Neighbours,
    vertices: Sequence[Vertex],
    filters: dict[int, int],
    out: Path,
) -> Path:
    """Write the page of one query's neighbours, or without a query of the images with some vertices."""
    total = found.simplices
    pictures, rows = [], found.indices[0].tolist()
    for row, name, agree in zip(rows, found.names[0], found.agree[0].tolist(), strict=True):
        details: dict[str, Any] = {"words": []}
        if query is not None:
            simplices = ", ".join(map(str, sorted(index.agreeing(found.codes[0], row))))
            details = {"words": [f"{agree} of {total} agree"], "share": agree / total, "simplices": simplices}
        pictures.append(Picture(name, thumbnail(index.folder / name), **details))
    shared = []
    for vertex in vertices:
        count = f"{vertex.neighbours} of {len(rows)} results have it"
        words = [count, f"{100 * vertex.share:.1f} % of the index"]
        examples = [Picture(name, thumbnail(index.folder / name), []) for name in vertex.examples]
        shared.append((f"simplex {vertex.simplex}, vertex {vertex.vertex}", words, examples))
    heading = (
        f"{len(rows)} nearest images" if query else f"{len(rows)} of {len(index.having(filters))} images"
    )
    return _write(
        out,
        title="Images with chosen vertices" if query is None else f"Images like {PurePath(query).name}",
        under=_about(index),
        filters=[f"simplex {simplex} has vertex {vertex}" for simplex, vertex in filters.items()],
        query=None if query is None else Picture(PurePath(query).name, thumbnail(Path(query)), []),
        heading=heading,
        results=pictures,
        shared=shared,
        groups=None,
        hidden=0,
    )


def write_duplicates(index: Index, groups: Sequence[Group], distance: float, out: Path) -> Path:
    """Write the page of groups of duplicates."""
    shown = []
    for group in groups[:MOST_GROUPS]:
        rows = zip(group.names, group.bytes, group.exact, group.distance, strict=True)
        pictures = [
            Picture(name, thumbnail(index.folder / name), [_copy(i, exact, look), file_size(size)])
            for i, (name, size, exact, look) in enumerate(rows)
            if i < MOST_IMAGES
        ]
        hidden = len(group.names) - len(pictures)
        more = f", {hidden} more are not shown" if hidden else ""
        kind = "equal files" if all(group.exact) else _distance(max(group.distance))
        shown.append((f"{len(group.names)} images, {kind}{more}", pictures))
    return _write(
        out,
        title=f"{len(groups):,} groups of duplicates",
        under=f"{_about(index)}; looks differ by at most {distance:g}",
        filters=[],
        query=None,
        heading="",
        results=[],
        shared=[],
        groups=shown,
        hidden=len(groups) - len(shown),
    )


def thumbnail(path: Path) -> str | None:
    """A small JPEG of an image file as a data URL; None if the file is gone or cannot be read."""
    from simplicia.data.image_files import Image, decode

    try:
        pixels, aspect = decode(path, SIDE, keep_aspect=True)
        size = max(1, round(SIDE * min(aspect, 1))), max(1, round(SIDE / max(aspect, 1)))
        file = io.BytesIO()
        Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=82)
    except Exception:  # Pillow raises nearly every exception there is
        return None
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _copy(place: int, exact: bool, look: float) -> str:
    """The relation of an image to the first of its group."""
    return "largest file" if not place else "same bytes" if exact else _distance(look)


def _distance(look: float) -> str:
    return f"distance {look:.3f}" if look >= 0.0005 else "equal looks"


def file_size(size: int) -> str:
    """The size of a file for people."""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def _about(index: Index) -> str:
    """One line about an index; without its folder, because the page may be mailed."""
    kept = f"{len(index.simplices)} of {index.about.total} simplices of {index.about.vertices} vertices"
    return f"{index.path.name}: {len(index):,} images, {kept}, model {index.about.model.name}"


def _write(out: Path, **values: object) -> Path:
    page = render("codes.html.j2", policy=POLICY, **values)
    return write_file(out, page.encode("utf-8", "replace"), "the page")
