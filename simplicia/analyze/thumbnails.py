"""Sheets of thumbnails: many small images in few files."""

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from simplicia.analyze.report_data import Sheet, Tile

TILE = 64  # pixels at most
COLUMNS = 32
ROWS = 32  # of a sheet


def write(images: Tensor, folder: Path) -> tuple[int, list[Sheet], list[Tile]]:
    """Write images (N, 3, H, W) uint8 to ``thumbnails-I.jpg``: a tile's pixels, the sheets, the tiles."""
    from PIL import Image

    side = min(TILE, max(images.shape[2:]))
    if tuple(images.shape[2:]) != (side, side):
        small = F.interpolate(images.float(), (side, side), mode="bilinear", antialias=True)
        images = small.round().clamp(0, 255).byte()
    sheets: list[Sheet] = []
    tiles: list[Tile] = []
    for part in images.split(COLUMNS * ROWS):
        columns = min(COLUMNS, len(part))
        rows = -(-len(part) // columns)
        file = f"thumbnails-{len(sheets)}.jpg"
        sheet = part.new_full((rows * columns, 3, side, side), 255)
        sheet[: len(part)] = part
        pixels = sheet.view(rows, columns, 3, side, side).permute(0, 3, 1, 4, 2)
        Image.fromarray(pixels.reshape(rows * side, columns * side, 3).numpy()).save(
            folder / file, quality=88
        )
        tiles += [Tile(len(sheets), i % columns * side, i // columns * side) for i in range(len(part))]
        sheets.append(Sheet(file, columns * side, rows * side))
    return side, sheets, tiles
