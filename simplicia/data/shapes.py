"""Twenty kinds of shapes, drawn by code: a data set without download whose classes colours do not reveal.

Every image shows one dark figure at a random position, size and angle on a light background among small
distractors, in coloured light and with noise. Images of a class differ in what augmentations change (flips,
crops, colours), so a method that learns to ignore augmentations learns the class.
"""

import functools
from collections.abc import Callable

import numpy as np
import torch

from simplicia.data.datasets import ImageSet, dataset

Array = np.ndarray
Number = Array | float
SIDE = 32
COUNTS = {"train": 5000, "test": 1000}


@functools.cache
def shapes(split: str) -> ImageSet:
    """5,000 images for "train", 1,000 for "test", shuffled, with balanced classes."""
    count = COUNTS[split]
    random = np.random.Generator(np.random.PCG64([0, list(COUNTS).index(split)]))
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
    angle = uniform(0, 2 * np.pi)
    slope = np.cos(angle) * (x - SIDE / 2) + np.sin(angle) * (y - SIDE / 2)
    image = ground + slope / SIDE * uniform(0, 0.25)

    for _ in range(3):  # distractors: small discs and short lines, some of them invisible
        u, v = _local(x, y, uniform(0, SIDE), uniform(0, SIDE), uniform(0, 2 * np.pi), 1.0)
        length = uniform(0, 6) * (uniform(0, 1) < 0.5)
        nearest = np.clip((u + length / 2) * length / np.maximum(length**2, 1e-9), 0, 1) * length
        stroke = np.hypot(u + length / 2 - nearest, v) - uniform(0.3, 1.2)
        shade, visible = uniform(0.1, 0.9), uniform(0, 1) < 0.7
        image = image + (shade - image) * (np.clip(0.5 - stroke, 0, 1) * visible)

    size = uniform(9.0, 12.5)
    free = SIDE / 2 - size * 0.9
    cx, cy = (SIDE / 2 + free * uniform(-1, 1) for _ in "xy")
    u, v = _local(x, y, cx, cy, uniform(-0.4, 0.4), size)
    u *= random.choice([-1, 1], (n, 1, 1))  # mirrored half of the time
    image = (image + (ink - image) * np.clip(0.5 - figure(u, v, uniform) * size, 0, 1))[:, None]

    # Coloured light, exposure and contrast, as colour jitter changes them, and noise.
    image = image * uniform(0.55, 1.0, 3, 1, 1)
    image = 0.5 + (image - 0.5) * uniform(0.6, 1.2, 1, 1, 1) + uniform(-0.15, 0.15, 1, 1, 1)
    image = image + random.standard_normal((n, 3, SIDE, SIDE)) * 0.04
    return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)


def _local(x: Array, y: Array, cx: Array, cy: Array, angle: Array, size: Number) -> tuple[Array, Array]:
    """Coordinates in which a figure is upright, centred, and about as large as the unit disc."""
    c, s = np.cos(angle), np.sin(angle)
    return (c * (x - cx) + s * (y - cy)) / size, (c * (y - cy) - s * (x - cx)) / size


# A figure is a signed distance function of those coordinates, negative inside.


def _box(u: Array, v: Array, width: Number, height: Number) -> Array:
    return np.maximum(abs(u) - width, abs(v) - height)


def _disc(u: Array, v: Array, x: Number, radius: Number) -> Array:
    """A disc around (x, 0)."""
    return np.hypot(u - x, v) - radius


def _lens(u: Array, v: Array, offset: Array) -> Array:
    return np.hypot(u, abs(v) + offset) - np.hypot(1.05, offset)


def _wedge(u: Array, v: Array) -> Array:
    return 0.45 * (u - 1.1) + 0.9 * abs(v)


def _fold(u: Array, v: Array, parts: int) -> tuple[Array, Array]:
    """One sector of a figure that repeats `parts` times around the origin, with its axis along u."""
    radius, sector = np.hypot(u, v), 2 * np.pi / parts
    angle = np.mod(np.arctan2(v, u) + sector / 2, sector) - sector / 2
    return radius * np.cos(angle), radius * np.sin(angle)


def _pattern(kind: str, u: Array, v: Array, pitch: Array, uniform: Callable[..., Array]) -> Array:
    """A large disc filled with a pattern, which repeats after each pitch from a random origin."""
    axes = {"stripes": [u], "circles": [np.hypot(u, v)]}.get(kind, [u, v])
    tiles = [np.mod(w + uniform(0, 1), pitch) - pitch / 2 for w in axes]
    bands = [abs(w) - pitch / 4 for w in tiles]
    pattern = bands[0]
    if kind == "checks":
        pattern = np.maximum(np.minimum(*bands), -np.maximum(*bands))
    elif kind == "dots":
        pattern = np.hypot(*tiles) - 0.33 * pitch
    return np.maximum(pattern, _disc(u, v, 0, 1.35))


SUPERCLASSES: dict[str, dict[str, Callable[..., Array]]] = {
    "polygons": {
        "triangle": lambda u, v, uniform: _fold(u, v, 3)[0] - 0.58,
        "square": lambda u, v, uniform: _box(u, v, 0.72, 0.72),
        "star": lambda u, v, uniform: _wedge(*_fold(u, v, 5)),
        "bar": lambda u, v, uniform: _box(u, v, 1.1, uniform(0.2, 0.3)),
    },
    "rounds": {
        "disc": lambda u, v, uniform: _disc(u, v, 0, 0.85),
        "ring": lambda u, v, uniform: abs(_disc(u, v, 0, 0.75)) - uniform(0.13, 0.2),
        "crescent": lambda u, v, uniform: np.maximum(
            _disc(u, v, 0, 0.95), -_disc(u, v, uniform(0.45, 0.6), 0.75)
        ),
        "lens": lambda u, v, uniform: _lens(u, v, uniform(0.75, 0.9)),
    },
    "strokes": {
        "cross": lambda u, v, uniform: _box(*_fold(u, v, 4), 1.0, uniform(0.12, 0.2)),
        "tripod": lambda u, v, uniform: _box(*_fold(u, v, 3), 1.0, uniform(0.12, 0.2)),
        "zigzag": lambda u, v, uniform: _box(
            u, 0.55 * (v - (abs(np.mod(u + 0.3, 1.2) - 0.6) / 0.6 * 0.9 - 0.45)), 1.2, uniform(0.11, 0.16)
        ),
        "frame": lambda u, v, uniform: abs(_box(u, v, 0.7, 0.7)) - uniform(0.11, 0.16),
    },
    "patterns": {
        "stripes": lambda u, v, uniform: _pattern("stripes", u, v, uniform(0.4, 0.6), uniform),
        "checks": lambda u, v, uniform: _pattern("checks", u, v, uniform(0.8, 1.1), uniform),
        "dots": lambda u, v, uniform: _pattern("dots", u, v, uniform(0.55, 0.75), uniform),
        "circles": lambda u, v, uniform: _pattern("circles", u, v, uniform(0.45, 0.6), uniform),
    },
    "groups": {
        "pair": lambda u, v, uniform: _disc(abs(u), v, 0.65, uniform(0.38, 0.48)),
        "wreath": lambda u, v, uniform: _disc(*_fold(u, v, 6), 0.9, uniform(0.2, 0.26)),
        "target": lambda u, v, uniform: np.minimum(
            _disc(u, v, 0, uniform(0.3, 0.4)), abs(_disc(u, v, 0, 0.85)) - uniform(0.11, 0.15)
        ),
        "tracks": lambda u, v, uniform: _box(u, abs(v) - uniform(0.4, 0.5), 1.0, uniform(0.16, 0.22)),
    },
}
_FIGURES = {name: figure for group in SUPERCLASSES.values() for name, figure in group.items()}

dataset("shapes", "figures in 5 superclasses, drawn from a seed, 32 px", image_size=SIDE)(
    lambda split, options: shapes(split)
)
