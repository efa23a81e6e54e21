"""Crops of encoded images: their boxes, and decoding what is needed of an image."""

import functools
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from simplicia.data.augmentation import Pair

Box = tuple[int, int, int, int]  # top, left, height, width
Shape = tuple[int, int]  # height, width
TRIES = 10  # crops that are drawn before the largest one of a fitting shape is taken
START_OF_JPEG, END_OF_JPEG = b"\xff\xd8", b"\xff\xd9"
FRAMES = 0xC0, 0xC2  # segments of a JPEG that tell its size: baseline and progressive
TABLES = 0xE0, 0xDB, 0xC4, 0xDD, 0xFE  # others without a say in its size, colours or orientation


def random_box(draws: list[float], height: int, width: int, scale: Pair, ratio: Pair) -> Box:
    """A random crop from 22 uniform numbers, as ``augmentation.sample_boxes`` draws it."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for area, shape in zip(draws[:TRIES], draws[TRIES : 2 * TRIES], strict=True):
        pixels = height * width * (scale[0] + area * (scale[1] - scale[0]))
        aspect = math.exp(low + shape * (high - low))
        h, w = round(math.sqrt(pixels / aspect)), round(math.sqrt(pixels * aspect))
        if 1 <= h <= height and 1 <= w <= width:
            return int(draws[-2] * (height - h + 1)), int(draws[-1] * (width - w + 1)), h, w
    h = min(max(round(width / ratio[0]), 1), height)
    w = min(max(round(height * ratio[1]), 1), width)
    return (height - h) // 2, (width - w) // 2, h, w


def centre_square(height: int, width: int) -> Box:
    short = min(height, width)
    return (height - short) // 2, (width - short) // 2, short, short


def crop_encoded(
    data: bytes, choose: Callable[[int, int], list[Box]], size: int, interpolation: str = "bicubic"
) -> list[Tensor]:
    """Parts of an encoded image, each resized with antialiasing to (3, size, size) uint8 RGB.

    ``choose`` gets the height and width of the upright image, and returns the boxes. JPEGs in colour are
    decoded by torchcodec or torchvision, everything else by Pillow, as ``image_files.decode`` does it.
    """
    from simplicia.data.image_files import MOST_PIXELS, in_flight

    shape, pixels, boxes = plain_jpeg_shape(data), None, []
    if shape is not None and shape[0] * shape[1] <= MOST_PIXELS:
        boxes = choose(*shape)
        if not _can_skip_detail(boxes, size):
            with in_flight(shape[0] * shape[1]):
                pixels = _decode_jpeg(data)
    if pixels is None:
        pixels, shape, boxes = _decode_with_pillow(data, choose, size)
    assert shape is not None
    down, across = pixels.shape[1] / shape[0], pixels.shape[2] / shape[1]
    parts = []
    for top, left, h, w in boxes:
        if (down, across) != (1, 1):
            top, left = math.floor(top * down), math.floor(left * across)
            h, w = max(1, round(h * down)), max(1, round(w * across))
        part = pixels[None, :, top : top + h, left : left + w]
        parts.append(F.interpolate(part, (size, size), mode=interpolation, antialias=True)[0])
    return parts


def plain_jpeg_shape(data: bytes) -> Shape | None:
    """Height and width of a JPEG in three colours without EXIF data; None for any other file.

    Pillow takes a tenth of a millisecond to open a file, and threads wait for each other meanwhile.
    """
    if not (data.startswith(START_OF_JPEG) and data.endswith(END_OF_JPEG)):  # Pillow judges one that is cut
        return None
    at = len(START_OF_JPEG)
    while at + 10 <= len(data) and data[at] == 0xFF:
        segment, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        if segment in FRAMES:
            height, width = int.from_bytes(data[at + 5 : at + 7]), int.from_bytes(data[at + 7 : at + 9])
            plain = data[at + 4] == 8 and data[at + 9] == 3 and height * width > 0
            return (height, width) if plain else None
        if segment not in TABLES:
            return None
        at += 2 + length
    return None


def _can_skip_detail(boxes: list[Box], size: int) -> bool:
    """Whether half the resolution of a JPEG is enough: twice the size leaves enough to resize well."""
    return min(min(box[2:]) for box in boxes) >= 4 * size


def _decode_with_pillow(
    data: bytes, choose: Callable[[int, int], list[Box]], size: int
) -> tuple[Tensor, Shape, list[Box]]:
    """The pixels (3, H, W) of an image of any kind, its full height and width, and its boxes."""
    from simplicia.data.image_files import FORMATS, Image, check_pixels, in_flight, orientation, to_rgb

    pixels, boxes = None, None
    with Image.open(BytesIO(data), formats=FORMATS) as image:
        plain = False
        if image.format == "JPEG":
            turn = orientation(image)
            shape = image.size[::-1] if turn < 5 else image.size
            boxes = choose(*shape)
            plain = image.mode == "RGB" and turn == 1 and data.endswith(END_OF_JPEG)
            if _can_skip_detail(boxes, size):
                scale = 2 * size / min(min(box[2:]) for box in boxes)
                image.draft("RGB", (round(image.width * scale), round(image.height * scale)))
                plain = False
        check_pixels(image)
        with in_flight(image.width * image.height):
            if plain:
                pixels = _decode_jpeg(data)
            if pixels is None:
                pixels = torch.tensor(np.asarray(to_rgb(image))).permute(2, 0, 1)
    if boxes is None:
        shape = pixels.shape[1], pixels.shape[2]
        boxes = choose(*shape)
    return pixels, shape, boxes


def _decode_jpeg(data: bytes) -> Tensor | None:
    """Pixels (3, H, W) of a JPEG; None if neither library reads it."""
    with suppress(RuntimeError):
        decoder = _jpeg_decoder()
        return None if decoder is None else decoder(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return None


@functools.cache
def _jpeg_decoder() -> Callable[[Tensor], Tensor] | None:
    """The decoder of torchcodec, or of torchvision, which hands its own over to torchcodec."""
    # each of them may be missing, too old, or built for another version of torch
    with suppress(ImportError, RuntimeError, OSError):
        from torchcodec.decoders import decode_image

        return decode_image
    with suppress(ImportError, RuntimeError, OSError):
        from torchvision.io import decode_jpeg

        warnings.filterwarnings("ignore", "The image decoding and encoding", DeprecationWarning)
        return decode_jpeg
    return None
