"""simplicia pack: images in shards that stream from any disk."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

from simplicia.cli.tables import echo
from simplicia.cli.verbs import Quiet, verb
from simplicia.errors import UserError
from simplicia.progress import Counter, say
from simplicia.settings import Range


@verb("pack SOURCE OUT")
def pack(
    source: Annotated[str, "folder of images, tar shards or parquet files"],
    out: Annotated[str | None, "folder to write (with --check: may be left out)"] = None,
    *,
    size: Annotated[int, "short side of larger images, in pixels", Range(8, 8192)] = 256,
    quality: Annotated[int, "of the JPEGs", Range(1, 100)] = 90,
    check: Annotated[bool, "verify what was packed"] = False,
    max_unreadable: Annotated[float, "share of unreadable images that may be left out", Range(0, 1)] = 0.01,
    quiet: Quiet = False,
) -> None:
    """Pack images into tar shards with an index: simplicia pack imagenet packed --size 256.

    Train on them with --data packed, or below --data-dir in place of the folder. The same command continues
    after it was stopped.
    """
    from simplicia.data import packing

    if out is None and not check:
        raise UserError("simplicia pack takes two folders, SOURCE and OUT; see simplicia pack --help")
    folder = Path(out or source)
    with closing(Counter("verifying" if check else "packing", quiet)) as bar:
        if check:
            count = packing.check(folder, bar.update)
        else:
            count, left_out = packing.pack(Path(source), folder, size, quality, max_unreadable, bar.update)
    if check:
        echo(f"{count:,} images in {folder} are as they were packed")
        return
    if left_out:
        path, reason = left_out[0]
        say([f"left out {len(left_out)} images that cannot be read, such as {path} ({reason})"])
    echo(f"{count:,} images packed into {folder}")
    echo(f"next: simplicia pretrain byol-sem --data {folder}")
