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
    from torchvision.transforms.functional import to_pil_image
    from torchvision.utils import make_grid

    side = min(TILE, max(images.shape[2:]))
    if tuple(images.shape[2:]) != (side, side):
        small = F.interpolate(images.float(), (side, side), mode="bilinear", antialias=True)
        images = small.round().clamp(0, 255).byte()
    sheets: list[Sheet] = []
    tiles: list[Tile] = []
    for part in images.split(COLUMNS * ROWS):
        columns, file = min(COLUMNS, len(part)), f"thumbnails-{len(sheets)}.jpg"
        sheet = to_pil_image(make_grid(part, columns, padding=0, pad_value=255))
        sheet.save(folder / file, quality=88)
        tiles += [Tile(len(sheets), i % columns * side, i // columns * side) for i in range(len(part))]
        sheets.append(Sheet(file, *sheet.size))
    return side, sheets, tiles
