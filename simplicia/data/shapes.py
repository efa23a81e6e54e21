"""Twenty kinds of shapes, drawn by code: a data set without download whose classes colours do not reveal.

Every image shows one dark figure at a random position, size and angle on a light background among small
distractors, in coloured light and with noise. Images of a class differ in what augmentations change (flips,
crops, colours), so a method that learns to ignore augmentations learns the class.
"""

import functools
from collections.abc import Callable

import numpy as np
import torch

from simplicia.data.image_set import ImageSet, ReadOptions, dataset
from simplicia.errors import UserError, unknown

Array = np.ndarray
Number = Array | float
SIDE = 32
COUNTS = {"train": 5000, "test": 1000}


@dataset("shapes", "figures in 5 superclasses, drawn from a seed, 32 px", image_size=SIDE)
def read(split: str, options: ReadOptions) -> ImageSet:
    return shapes(split)


@functools.lru_cache(maxsize=4)
def shapes(split: str = "train", count: int | None = None, seed: int = 0) -> ImageSet:
    """`count` images (default: 5,000 for "train", 1,000 for "test"), shuffled, with balanced classes."""
    if split not in COUNTS:
        raise unknown("split", split, COUNTS)
    count = COUNTS[split] if count is None else count
    if count < 1 or seed < 0:
        raise UserError(f"shapes need a count of at least 1 and a seed of at least 0, not {count} and {seed}")
    random = np.random.Generator(np.random.PCG64([seed, list(COUNTS).index(split)]))
    labels = random.permutation(np.arange(count) % len(_FIGURES))
    images = np.empty((count, 3, SIDE, SIDE), dtype=np.uint8)
    for label, figure in enumerate(_FIGURES.values()):
        members = np.flatnonzero(labels == label)
        for some in np.array_split(members, len(members) // 32 + 1):  # few at a time stay in the cache
            images[some] = _draw(figure, len(some), random)
    return ImageSet(
        name="shapes",
        images=torch.from_numpy(images),
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=tuple(_FIGURES),
        superclass=torch.tensor([i for i, group in enumerate(SUPERCLASSES.values()) for _ in group]),
        superclasses=tuple(SUPERCLASSES),
    )


def _draw(figure: Callable[..., Array], n: int, random: np.random.Generator) -> Array:
    """(n, 3, SIDE, SIDE) uint8 images of one figure."""

    def uniform(low: float, high: float, *shape: int) -> Array:
        return random.uniform(low, high, (n, *(shape or (1, 1))))

    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    x, y = x[None], y[None]

    # Dark ink on a light background, unevenly lit.
    ground, ink = uniform(0.75, 0.95), uniform(0.1, 0.35)
    slope = _direction(uniform(0, 2 * np.pi))
    image = ground + (slope[0] * (x - SIDE / 2) + slope[1] * (y - SIDE / 2)) / SIDE * uniform(0, 0.25)

    for _ in range(3):  # distractors: small discs and short lines, some of them invisible
        u, v = _local(x, y, uniform(0, SIDE), uniform(0, SIDE), uniform(0, 2 * np.pi), 1.0)
        length = uniform(0, 6) * (uniform(0, 1) < 0.5)
        stroke = _segment(u, v, -length / 2, 0, length / 2, 0) - uniform(0.3, 1.2)
        image = _paint(image, uniform(0.1, 0.9), np.clip(0.5 - stroke, 0, 1) * (uniform(0, 1) < 0.7))

    size = uniform(9.0, 12.5)
    free = SIDE / 2 - size * 0.9
    cx, cy = (SIDE / 2 + free * uniform(-1, 1) for _ in "xy")
    u, v = _local(x, y, cx, cy, uniform(-0.4, 0.4), size)
    u *= random.choice([-1, 1], (n, 1, 1))  # mirrored half of the time
    image = _paint(image, ink, np.clip(0.5 - figure(u, v, uniform) * size, 0, 1))[:, None]

    # Coloured light, exposure and contrast, as colour jitter changes them, and noise.
    image = image * uniform(0.55, 1.0, 3, 1, 1)
    image = 0.5 + (image - 0.5) * uniform(0.6, 1.2, 1, 1, 1) + uniform(-0.15, 0.15, 1, 1, 1)
    image = image + random.standard_normal((n, 3, SIDE, SIDE)) * 0.04
    return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)


def _paint(image: Array, shade: Array, mask: Array) -> Array:
    return image + (shade - image) * mask


def _direction(angle: Array) -> tuple[Array, Array]:
    return np.cos(angle), np.sin(angle)


def _local(x: Array, y: Array, cx: Array, cy: Array, angle: Array, size: Number) -> tuple[Array, Array]:
    """Coordinates in which a figure is upright, centred, and about as large as the unit disc."""
    c, s = _direction(angle)
    return (c * (x - cx) + s * (y - cy)) / size, (c * (y - cy) - s * (x - cx)) / size


# A figure is a signed distance function of those coordinates, negative inside.


def _segment(u: Array, v: Array, ax: Number, ay: Number, bx: Number, by: Number) -> Array:
    """The distance to the line from a to b."""
    dx, dy = bx - ax, by - ay
    along = np.clip(((u - ax) * dx + (v - ay) * dy) / np.maximum(dx * dx + dy * dy, 1e-9), 0, 1)
    return np.hypot(u - ax - along * dx, v - ay - along * dy)


def _box(u: Array, v: Array, width: Number, height: Number) -> Array:
    return np.maximum(abs(u) - width, abs(v) - height)


def _fold(u: Array, v: Array, parts: int) -> tuple[Array, Array]:
    """One sector of a figure that repeats `parts` times around the origin, with its axis along u."""
    radius, sector = np.hypot(u, v), 2 * np.pi / parts
    c, s = _direction(np.mod(np.arctan2(v, u) + sector / 2, sector) - sector / 2)
    return radius * c, radius * s


def _triangle(u, v, uniform):
    return _fold(u, v, 3)[0] - 0.58


def _square(u, v, uniform):
    return _box(u, v, 0.72, 0.72)


def _star(u, v, uniform):
    u, v = _fold(u, v, 5)
    return 0.45 * (u - 1.1) + 0.9 * abs(v)


def _bar(u, v, uniform):
    return _box(u, v, 1.1, uniform(0.2, 0.3))


def _disc(u, v, uniform):
    return np.hypot(u, v) - 0.85


def _ring(u, v, uniform):
    return abs(np.hypot(u, v) - 0.75) - uniform(0.13, 0.2)


def _crescent(u, v, uniform):
    return np.maximum(np.hypot(u, v) - 0.95, 0.75 - np.hypot(u - uniform(0.45, 0.6), v))


def _lens(u, v, uniform):
    offset = uniform(0.75, 0.9)
    return np.hypot(u, abs(v) + offset) - np.hypot(1.05, offset)


def _cross(u, v, uniform):
    u, v = _fold(u, v, 4)
    return _box(u, v, 1.0, uniform(0.12, 0.2))


def _tripod(u, v, uniform):
    u, v = _fold(u, v, 3)
    return _box(u, v, 1.0, uniform(0.12, 0.2))


def _zigzag(u, v, uniform):
    height = 0.45
    teeth = abs(np.mod(u + 0.3, 1.2) - 0.6) / 0.6 * 2 * height - height
    return np.maximum(abs(v - teeth) * 0.55 - uniform(0.11, 0.16), abs(u) - 1.2)


def _frame(u, v, uniform):
    return abs(_box(u, v, 0.7, 0.7)) - uniform(0.11, 0.16)


# Patterns fill a large disc; their pitch varies.


def _patch(u, v, pattern):
    return np.maximum(pattern, np.hypot(u, v) - 1.35)


def _stripes(u, v, uniform):
    pitch = uniform(0.4, 0.6)
    return _patch(u, v, abs(np.mod(u + uniform(0, 1), pitch) - pitch / 2) - pitch / 4)


def _checks(u, v, uniform):
    pitch = uniform(0.8, 1.1)
    a, b = (abs(np.mod(w + uniform(0, 1), pitch) - pitch / 2) - pitch / 4 for w in (u, v))
    return _patch(u, v, np.maximum(np.minimum(a, b), -np.maximum(a, b)))


def _dots(u, v, uniform):
    pitch = uniform(0.55, 0.75)
    a, b = (np.mod(w + uniform(0, 1), pitch) - pitch / 2 for w in (u, v))
    return _patch(u, v, np.hypot(a, b) - 0.33 * pitch)


def _circles(u, v, uniform):
    pitch = uniform(0.45, 0.6)
    return _patch(u, v, abs(np.mod(np.hypot(u, v) + uniform(0, 1), pitch) - pitch / 2) - pitch / 4)


def _pair(u, v, uniform):
    return np.hypot(abs(u) - 0.65, v) - uniform(0.38, 0.48)


def _wreath(u, v, uniform):
    u, v = _fold(u, v, 6)
    return np.hypot(u - 0.9, v) - uniform(0.2, 0.26)


def _target(u, v, uniform):
    radius = np.hypot(u, v)
    return np.minimum(radius - uniform(0.3, 0.4), abs(radius - 0.85) - uniform(0.11, 0.15))


def _tracks(u, v, uniform):
    return _box(u, abs(v) - uniform(0.4, 0.5), 1.0, uniform(0.16, 0.22))


SUPERCLASSES = {
    "polygons": {"triangle": _triangle, "square": _square, "star": _star, "bar": _bar},
    "rounds": {"disc": _disc, "ring": _ring, "crescent": _crescent, "lens": _lens},
    "strokes": {"cross": _cross, "tripod": _tripod, "zigzag": _zigzag, "frame": _frame},
    "patterns": {"stripes": _stripes, "checks": _checks, "dots": _dots, "circles": _circles},
    "groups": {"pair": _pair, "wreath": _wreath, "target": _target, "tracks": _tracks},
}
_FIGURES = {name: figure for group in SUPERCLASSES.values() for name, figure in group.items()}
