"""simplicia index, search, dedup: find similar images and duplicates by their codes."""

import dataclasses
from pathlib import Path
from typing import Annotated

import simplicia
from simplicia.cli.tables import echo, table, write_json
from simplicia.cli.verbs import NOT_NEGATIVE, POSITIVE, Device, Json, OutputFile, Quiet, RunFolder, verb
from simplicia.errors import UserError
from simplicia.progress import plural

SHOWN = 50  # groups of duplicates that are printed
IndexFile = Annotated[Path, "file of an index"]
Html = Annotated[OutputFile | None, "page to write, with thumbnails"]


@verb("index RUN [IMAGES]")
def index(
    run: RunFolder,
    images: Annotated[str | None, "folder of images, or an image"] = None,
    *,
    out: Annotated[OutputFile, "file of the index"],
    simplices: Annotated[int, "how many simplices to keep, the most informative ones", POSITIVE] = 256,
    add: Annotated[list[str] | None, "folders or images to add to the index"] = None,
    remove: Annotated[list[str] | None, "names of images or folders to remove from the index"] = None,
    json: Json = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Index images by their codes: simplicia index RUN photos/ --out photos.index.

    Then search it and find duplicates. --add and --remove change an index that is there; image files never
    change. The same command continues a build that was killed.
    """
    from simplicia.codes import Index
    from simplicia.evaluate.features import report_skipped

    if images is None and not (add or remove):
        raise UserError("no images are named; give a folder to index, or --add or --remove")
    if images is not None and (add or remove):
        raise UserError(
            f"both {images!r} and --add or --remove are given; index a folder first, then change the index"
        )
    loaded = simplicia.load(run, device)
    if images is not None:
        built = Index.build(loaded, images, out, simplices, quiet)
        report_skipped(images, built.skipped)
    else:
        built = Index.open(out, loaded)
        if remove:
            echo(f"removed {plural(built.remove(remove), 'image')}")
        for folder in add or ():
            echo(f"added {plural(built.add(folder, quiet), 'image')} of {folder}")
            report_skipped(folder, built.skipped)
    size, kept = out.stat().st_size, len(built.simplices)
    codes = 8 * built.words
    echo(
        f"{plural(len(built), 'image')}, {kept} of {built.about.total} simplices, "
        f"{codes} bytes of codes an image, {size / 1e6:.1f} MB in all, in {out}"
    )
    about = {"images": len(built), "bytes": size, "bytes_of_codes_an_image": codes, **built.about.to_json()}
    write_json(json, about | {"model": built.about.model.to_json(), "skipped": built.skipped})


@verb("search INDEX [QUERY]")
def search(
    index: IndexFile,
    query: Annotated[str | None, "image to search for"] = None,
    *,
    k: Annotated[int, "how many images to list", POSITIVE] = 20,
    vertex: Annotated[list[str] | None, "list only images with these vertices, as SIMPLEX:VERTEX"] = None,
    fast: Annotated[bool, "compare all images in 64 simplices only: faster, and may miss some"] = False,
    html: Html = None,
    json: Json = None,
    run: Annotated[str | None, "folder of the run that made the index (default: where it was)"] = None,
    device: Device = "auto",
) -> None:
    """Find the images that share most codes with one: simplicia search photos.index query.jpg.

    Says which simplices agree, and shows on a page which images these stand for. Without a query it lists the
    images with the given vertices.
    """
    from simplicia.codes import Index

    pairs = list(map(_vertex, vertex or ()))
    filters = dict(pairs)
    for simplex, given in pairs:
        if given != filters[simplex]:
            raise UserError(
                f"--vertex names {simplex}:{given} and {simplex}:{filters[simplex]}; an image has one vertex "
                "in each simplex, so none has both: give one of them"
            )
    if query is None and not filters:
        raise UserError("no image is given to search for; give one, or --vertex SIMPLEX:VERTEX")
    opened = Index.open(index)
    if query is None:
        found = opened.listed(filters, k)
    else:
        opened.use(run, device)
        found = opened.search([query], k, exact=not fast, vertices=filters)
    rows = []
    for i, (row, name) in enumerate(zip(found.indices[0].tolist(), found.names[0], strict=True)):
        same = opened.agreeing(found.codes[0], row)
        agree, distance = int(found.agree[0, i]), float(found.distance[0, i])
        rows.append({"image": name, "agree": agree, "distance": distance, "simplices": same})
    if query is None:
        shared = []
        table(f"images of {index} with {' '.join(vertex or ())}", ["image"], rows)
    else:
        shared = opened.explain(found.codes[0], found.indices[0].tolist())
        agreeing = ("agreeing simplices", lambda row: f"{row['agree']} of {found.simplices}")
        table(f"images of {index} like {query}", ["image", agreeing, "distance"], rows)
        columns = [
            ("vertex", lambda v: f"{v.simplex}:{v.vertex}"),
            ("results that share it", lambda v: v.neighbours),
            ("% of the index", lambda v: 100 * v.share),
            ("images it stands for", lambda v: ", ".join(v.examples[:3])),
        ]
        table("what they share", columns, shared)
    write_json(
        json,
        {
            "index": str(index),
            "query": query,
            "filters": vertex or [],
            "exact": not fast,
            "simplices": opened.simplices,
            "results": rows,
            "shared": [dataclasses.asdict(vertex) for vertex in shared],
        },
    )
    if html is not None:
        from simplicia.report.codes_page import write_search

        echo(f"written to {write_search(opened, query, found, shared, filters, html)}")


@verb("dedup INDEX")
def dedup(
    index: IndexFile,
    *,
    distance: Annotated[
        float | None, "how much looks may differ, 0 to 1 (default: 0.04)", NOT_NEGATIVE
    ] = None,
    html: Html = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Find groups of exact and near duplicates: simplicia dedup photos.index.

    Resized, recompressed and slightly cropped copies count. Nothing is deleted.
    """
    from simplicia.codes import Index
    from simplicia.codes.duplicates import DISTANCE

    opened, limit = Index.open(index), DISTANCE if distance is None else distance
    groups = opened.duplicates(limit, quiet)
    rows = [
        [i + 1, name, "same bytes" if exact and j else ("-" if not j else "near"), look, code, size]
        for i, group in enumerate(groups[:SHOWN])
        for j, (name, exact, look, code, size) in enumerate(
            zip(group.names, group.exact, group.distance, group.code_distance, group.bytes, strict=True)
        )
    ]
    copies = sum(len(group.names) - 1 for group in groups)
    title = f"{plural(len(groups), 'group')} of duplicates in {plural(len(opened), 'image')} of {index}"
    table(title, ["group", "image", "copy", "distance", "distance of codes", "bytes"], rows)
    if len(groups) > SHOWN:
        echo(f"… and {len(groups) - SHOWN} more groups; --json and --html have them")
    write_json(
        json,
        {
            "index": str(index),
            "images": len(opened),
            "distance": limit,
            "copies": copies,
            "groups": [dataclasses.asdict(group) for group in groups],
        },
    )
    if html is not None:
        from simplicia.report.codes_page import write_duplicates

        echo(f"written to {write_duplicates(opened, groups, limit, html)}")


def _vertex(text: str) -> tuple[int, int]:
    simplex, colon, vertex = text.partition(":")
    if not (colon and simplex.isdecimal() and vertex.isdecimal() and len(text) < 20):
        raise UserError(f"--vertex is {text!r}; give a simplex and its vertex, such as 18:7")
    return int(simplex), int(vertex)
