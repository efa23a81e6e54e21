"""Decode one image file of any kind to a square of RGB pixels: upright, any bit depth, never clipped."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# Pillow goes by content, not extension. Other formats are not tried: some of them start programs.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
MOST_PIXELS = 90_000_000  # of one image, after a JPEG is reduced; larger ones are decompression bombs
# what turns an image upright, by its EXIF tag; from 5 on it lies on its side
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


_decoding = 0  # pixels that threads decode now
_finished = threading.Condition()
_share, _large = MOST_PIXELS, None  # images of more pixels take turns with those of other processes


def decode(path: Path, size: int, keep_aspect: bool = False) -> tuple[np.ndarray, float]:
    """An image file as ``to_square`` gives it."""
    with Image.open(path, formats=FORMATS) as image:
        # JPEG decoders can skip the finest detail; twice the size leaves enough to resize well.
        scale = 2 * size / min(image.size)
        image.draft("RGB", (round(image.width * scale), round(image.height * scale)))
        with in_flight(image.width * image.height):
            return to_square(image, size, keep_aspect)


@contextmanager
def in_flight(pixels: int) -> Iterator[None]:
    """Wait until all images that threads decode have at most ``MOST_PIXELS``; a larger one is alone."""
    global _decoding
    with nullcontext() if _large is None or pixels <= _share else _large:
        with _finished:
            _finished.wait_for(lambda: _decoding == 0 or _decoding + pixels <= MOST_PIXELS)
            _decoding += pixels
        try:
            yield
        finally:
            with _finished:
                _decoding -= pixels
                _finished.notify_all()


def share_pixels(processes: int, large: Any) -> None:
    """Decode beside other processes: the lock ``large`` is for images of more pixels than a share."""
    global _share, _large
    _share, _large = MOST_PIXELS // processes, large


def to_square(image: Image.Image, size: int, keep_aspect: bool = False) -> tuple[np.ndarray, float]:
    """An image, upright, as (size, size, 3) uint8 RGB, and its width / height.

    The image is center-cropped to a square, or with ``keep_aspect`` squeezed to one.
    """
    check_pixels(image)
    image.load()
    turn = orientation(image)  # after loading, which turns some formats upright
    aspect_ratio = image.width / image.height
    if image.mode == "F" or image.mode.startswith("I"):
        image = _to_rgb(image)  # before cropping: the range of values is that of all pixels
    if not keep_aspect:
        # Crop first: an image 1 pixel high and 5,000 wide would be huge once resized.
        short = min(image.size)
        left, top = (image.width - short) // 2, (image.height - short) // 2
        if image.width != image.height:
            image = image.crop((left, top, left + short, top + short))
    if image.mode != "L":  # three equal channels would take four times the memory
        image = _to_rgb(image)
    square = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0).convert("RGB")
    if turn not in TURNS:
        return np.asarray(square), aspect_ratio
    upright = np.asarray(square.transpose(TURNS[turn]))
    return upright, 1 / aspect_ratio if turn >= 5 else aspect_ratio


def check_pixels(image: Image.Image) -> None:
    """A ValueError for an image that is too large to decode."""
    if image.width * image.height > MOST_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels are too many")


def orientation(image: Image.Image) -> int:
    """The EXIF tag that says how an image lies; 1: upright."""
    try:
        turn = image.getexif().get(0x0112, 1)
        return turn if turn in TURNS else 1
    except Exception:  # an image with broken EXIF data is still readable
        return 1


def to_rgb(image: Image.Image) -> Image.Image:
    """An image of any kind, upright, in RGB."""
    image.load()
    turn = orientation(image)
    image = _to_rgb(image).convert("RGB")
    return image.transpose(TURNS[turn]) if turn in TURNS else image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        return _scale(np.asarray(image), tops=(1, 255))
    if image.mode.startswith("I"):
        return _scale(np.asarray(image), tops=(255, 4095, 65535))  # 8, 12 and 16 bits
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        return _on_white(image)
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """A transparent image on white, some rows at a time: the layers of all pixels take gigabytes."""
    result = Image.new("RGB", image.size)
    rows = _rows(image.width)
    for top in range(0, image.height, rows):
        part = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white = Image.new("RGBA", part.size, "white")
        result.paste(Image.alpha_composite(white, part).convert("RGB"), (0, top))
    return result


def _rows(width: int) -> int:
    """How many rows have about a million pixels."""
    return max(1, 2**20 // width)


def _scale(values: np.ndarray, tops: tuple[int, ...]) -> Image.Image:
    """16-bit, 32-bit or floating-point values as 8-bit grey, scaled from 0 to the first sufficient of `tops`.

    Without such a top, the range is from the lowest to the highest value: nothing is ever clipped.
    """
    rows = _rows(values.shape[1])  # at a time: all pixels in float64 take gigabytes

    def blocks() -> Iterator[np.ndarray]:
        for i in range(0, len(values), rows):
            yield np.nan_to_num(values[i : i + rows].astype(np.float64), posinf=0, neginf=0)

    low = min(float(block.min()) for block in blocks())
    high = max(float(block.max()) for block in blocks())
    top = next((top for top in tops if low >= 0 and high <= top), None)
    if top is not None:
        low, high = 0, top
    scale = 255 / ((high - low) or 1)  # constant images become black
    return Image.fromarray(np.concatenate([np.round((b - low) * scale).astype(np.uint8) for b in blocks()]))
