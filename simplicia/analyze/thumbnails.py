"""Sheets of thumbnails: many small images in few files."""

from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

TILE = 64  # pixels at most
COLUMNS = 32
ROWS = 32  # of a sheet


def write(images: Tensor, folder: Path) -> dict[str, Any]:
    """Write images (N, 3, H, W) uint8 to ``thumbnails-I.jpg``: their tile, sheets, and each image's place."""
    from PIL import Image

    tile = min(TILE, max(images.shape[2:]))
    if tuple(images.shape[2:]) != (tile, tile):
        small = F.interpolate(images.float(), (tile, tile), mode="bilinear", antialias=True)
        images = small.round().clamp(0, 255).byte()
    sheets: list[dict[str, Any]] = []
    places: list[dict[str, int]] = []
    for part in images.split(COLUMNS * ROWS):
        columns = min(COLUMNS, len(part))
        rows = -(-len(part) // columns)
        file = f"thumbnails-{len(sheets)}.jpg"
        sheet = part.new_full((rows * columns, 3, tile, tile), 255)
        sheet[: len(part)] = part
        pixels = sheet.view(rows, columns, 3, tile, tile).permute(0, 3, 1, 4, 2)
        array = pixels.reshape(rows * tile, columns * tile, 3).numpy()
        Image.fromarray(array).save(folder / file, quality=88)
        places += [
            {"sheet": len(sheets), "x": i % columns * tile, "y": i // columns * tile}
            for i in range(len(part))
        ]
        sheets.append({"file": file, "width": columns * tile, "height": rows * tile})
    return {"tile": tile, "sheets": sheets, "places": places}
