"""One picture, of whatever kind, as a square of RGB pixels: upright, of any number of bits, never clipped."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

# Pillow looks at the content, not the extension; other formats, some of which start programs, are not tried.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
MOST_PIXELS = 90_000_000  # of one image, once a JPEG is reduced: beyond that it is a bomb


def opened(path: Path) -> "Image.Image":
    """An image file, of which nothing but its head is read yet."""
    from PIL import Image

    return Image.open(path, formats=FORMATS)


def decode(path: Path, size: int) -> np.ndarray:
    """The centre square of an image file, upright, in RGB: (size, size, 3) uint8."""
    return picture(path, size)[0]


def picture(path: Path, size: int, keep_aspect: bool = False) -> tuple[np.ndarray, float]:
    """An image file as `decode` gives it, or the whole of it made square, and its width / height."""
    with opened(path) as image:
        # A JPEG can be decoded without its finest detail; twice the size leaves enough to resize well.
        enlarged = 2 * size / min(image.size)
        image.draft("RGB", (round(image.width * enlarged), round(image.height * enlarged)))
        return _upright(image, size, keep_aspect)


def upright_square(image: "Image.Image", size: int) -> np.ndarray:
    """The centre square of an opened image, as ``decode`` gives that of a file."""
    return _upright(image, size)[0]


def _upright(image: "Image.Image", size: int, keep_aspect: bool = False) -> tuple[np.ndarray, float]:
    """The centre square of a picture, or the whole of it made square, upright; and its width / height."""
    from PIL import Image

    if image.width * image.height > MOST_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels are too many")
    image.load()
    orientation = _orientation(image)  # after loading, which turns some formats upright by itself
    aspect = image.width / image.height
    if image.mode == "F" or image.mode.startswith("I"):
        image = _to_rgb(image)  # its levels are those of the whole picture, whatever part is seen
    if not keep_aspect:
        # Cut before all else: a picture 1 pixel high and 5,000 wide would be huge once resized.
        short = min(image.size)
        left, top = (image.width - short) // 2, (image.height - short) // 2
        image = image.crop((left, top, left + short, top + short))
    square = _to_rgb(image).resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    if orientation is None:
        return np.asarray(square), aspect
    turn = Image.Transpose
    sideways = orientation in (turn.TRANSPOSE, turn.TRANSVERSE, turn.ROTATE_90, turn.ROTATE_270)
    return np.asarray(square.transpose(orientation)), 1 / aspect if sideways else aspect


def _orientation(image: "Image.Image") -> "Image.Transpose | None":
    """What brings the picture upright, by its EXIF tag."""
    from PIL import Image

    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    try:
        return turns.get(image.getexif().get(0x0112, 1))
    except Exception:  # broken EXIF data do not make a picture unreadable
        return None


def _to_rgb(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    if image.mode == "F":
        return _grey(np.asarray(image), tops=(1, 255))
    if image.mode.startswith("I"):
        return _grey(np.asarray(image), tops=(255, 4095, 65535))  # of 8, 12 and 16 bits
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _grey(values: np.ndarray, tops: tuple[int, ...]) -> "Image.Image":
    """A picture of 16-bit, 32-bit or floating-point values from 0 to the first of `tops` that none exceeds.

    If there is none, from the least value to the largest: no value is ever clipped.
    """
    from PIL import Image

    values = np.nan_to_num(values.astype(np.float64), posinf=0, neginf=0)
    low, high = float(values.min()), float(values.max())
    top = next((top for top in tops if low >= 0 and high <= top), None)
    if top is not None:
        low, high = 0, top
    levels = np.round((values - low) * (255 / ((high - low) or 1)))  # all alike: black
    return Image.fromarray(levels.astype(np.uint8)).convert("RGB")
