"""Images as people have them: arrays, tensors, files, PIL images, data sets of PyTorch and Hugging Face.

``batches`` yields them to be encoded: uint8, or floats from 0 to 1, which keep their precision. ``image_set``
makes the uint8 set that training takes.
"""

import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from simplicia.data.augmentation import center_crop, eval_view, to_float
from simplicia.data.datasets import MEMORY, ImageSet
from simplicia.data.decoding import decode_files, largest_size, suitable_size
from simplicia.errors import UserError
from simplicia.progress import say

SHAPES = "(N, 3, H, W), (N, H, W, 3) or grey (N, H, W), uint8 or from 0 to 1"
IMAGE_COLUMNS, LABEL_COLUMNS = ("image", "img", "pixel_values", "jpg", "png"), ("label", "labels")


class Sample(NamedTuple):
    """One image of a data set: a path, a PIL image, an array or a tensor, and its class if it has one."""

    image: Any
    label: int | None = None


def pixels(images: Tensor | np.ndarray) -> Tensor:
    """An image or a batch of any layout as (N, 3, H, W): uint8, or float32 from 0 to 1.

    >>> pixels(torch.zeros(5, 32, 32, dtype=torch.uint8)).shape  # grey images
    torch.Size([5, 3, 32, 32])
    """
    x = torch.from_numpy(images.copy()) if isinstance(images, np.ndarray) else images.detach()
    given = f"{tuple(x.shape)} {x.dtype}".replace("torch.", "")
    wrong = UserError(f"images are {given}; they must be {SHAPES}")
    if x.dim() == 2:
        x = x[None]
    if x.dim() == 3:
        x = x[None] if x.shape[0] == 3 or x.shape[2] in (1, 3) else x[:, None]
    if x.dim() == 4 and x.shape[1] not in (1, 3):
        x = x.permute(0, 3, 1, 2)
    if x.dim() != 4 or x.shape[1] not in (1, 3) or 0 in x.shape[2:] or x.is_complex():
        raise wrong
    if x.dtype == torch.bool:
        x = x.to(torch.uint8) * 255
    if x.dtype != torch.uint8 and x.numel():
        low, high = (bound.item() for bound in x.aminmax())
        top = 1 if x.is_floating_point() else 255
        if not (low >= 0 and high <= top):
            raise UserError(f"images are {given} from {low:g} to {high:g}; they must be {SHAPES}")
    x = x.to(torch.float32 if x.is_floating_point() else torch.uint8)
    return x.expand(-1, 3, -1, -1).contiguous()


def batches(images: Any, size: int, batch_size: int) -> Iterator[Tensor]:
    """Batches (N, 3, H, W) of whatever images are given; files and PIL images are decoded at ``size``."""
    if _is_batch(images):
        yield from pixels(images).split(batch_size)
        return
    if isinstance(images, ImageSet):
        yield from images.center_cropped().images.split(batch_size)
        return
    if isinstance(images, torch.utils.data.DataLoader):
        for batch in images:
            yield from batches(_sample(batch).image, size, batch_size)
        return
    samples, count = iter(_samples(images)), 0
    while chunk := [sample.image for sample in itertools.islice(samples, batch_size)]:
        count += len(chunk)
        yield _stack([_decode(image, size)[0] for image in chunk], size)
    if not count:
        raise UserError("there are no images to encode")


def eval_views(
    images: Any,
    decode_size: int,
    image_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device,
) -> Tensor:
    """Images of any kind as an encoder sees them in evaluation: centre squares, normalised."""
    squares = (center_crop(batch.to(device), decode_size) for batch in batches(images, decode_size, 2**20))
    statistics: Any = tuple(mean), tuple(std)
    return torch.cat([eval_view(x, image_size, *statistics) for x in squares])


def image_set(
    data: Any,
    size: int = 0,
    keep_aspect: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ImageSet:
    """An image set to train on, with labels and classes if the data have them.

    Files and PIL images get the side ``size`` (0: that which suits them); ``progress(done, total)`` follows
    them. Floats are rounded to 8 bits.

    >>> len(image_set(np.zeros((4, 16, 16, 3), dtype=np.uint8)))
    4
    """
    if isinstance(data, ImageSet):
        return data
    if isinstance(data, torch.utils.data.DataLoader):
        raise UserError("data is a DataLoader; give its data set, such as loader.dataset")
    if _is_batch(data):
        return _in_8_bits(pixels(data).cpu())
    samples = list(_samples(data))
    if not samples:
        raise UserError("data has no images")
    images, labels = [sample.image for sample in samples], [sample.label for sample in samples]
    if all(isinstance(image, str | os.PathLike) for image in images):
        return _from_files(images, labels, _classes(data), size, keep_aspect, progress)
    if not size:
        sides = [min(image.size) for image in images[:64] if hasattr(image, "convert")]
        sides += [min(pixels(image).shape[2:]) for image in images[:64] if _is_batch(image)]
        size = largest_size(sides)
    decoded, ratios = [], []
    for i, image in enumerate(images):
        square, ratio = _decode(image, size, keep_aspect)
        decoded.append(square)
        ratios.append(ratio)
        progress(i + 1, len(images))
    aspect_ratios = torch.tensor(ratios) if keep_aspect and any(ratio != 1 for ratio in ratios) else None
    return _in_8_bits(_stack(decoded, size), labels, _classes(data), aspect_ratios=aspect_ratios)


def _from_files(
    paths: list[Any],
    labels: list[int | None],
    classes: tuple[str, ...],
    size: int,
    keep_aspect: bool,
    progress: Callable[[int, int], None],
) -> ImageSet:
    files = [Path(path) for path in paths]
    size = size or suitable_size(len(files), files.__getitem__)
    array, report = decode_files(files, size, keep_aspect, progress)
    return _in_8_bits(
        torch.from_numpy(array),
        [labels[i] for i in report.readable],
        classes,
        aspect_ratios=torch.tensor(report.aspect_ratios) if keep_aspect else None,
        files=tuple(str(files[i]) for i in report.readable),
        skipped=tuple((str(path), reason) for path, reason in report.skipped),
    )


def _in_8_bits(
    images: Tensor, labels: list[int | None] | None = None, classes: tuple[str, ...] = (), **more: Any
) -> ImageSet:
    if images.is_floating_point():
        rounded = (images * 255).round()
        if (rounded / 255 - images).abs().max() > 1e-6:  # not the 8-bit levels, as ToTensor gives them
            say(["float images are rounded to 8 bits for training"])
        images = rounded.to(torch.uint8)
    known = labels is not None and None not in labels
    numbers = torch.tensor(labels, dtype=torch.long) if known else None
    return ImageSet(MEMORY, images, numbers, classes if known else (), **more)


def _is_batch(images: Any) -> bool:
    """Whether images are pixels, not an array of paths or PIL images."""
    return isinstance(images, Tensor) or (isinstance(images, np.ndarray) and images.dtype.kind not in "OUS")


def _samples(data: Any) -> Iterable[Sample]:
    """The images of anything but a batch of pixels, with their labels."""
    if isinstance(data, np.ndarray):
        data = data.tolist()
    if isinstance(data, str | os.PathLike | bytes) or hasattr(data, "convert"):
        data = [data]
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return _rows(data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, dict):
        return (_sample(data[i]) for i in range(len(data)))
    if not isinstance(data, Iterable) or isinstance(data, dict):
        raise UserError(
            f"images are a {type(data).__name__}; give tensors, arrays, paths, PIL images or a data set"
        )
    return map(_sample, data)


def _sample(item: Any) -> Sample:
    """An item of a data set: an image, (image, label, …), or a dictionary of them."""
    if isinstance(item, dict):
        keys = [key for key in IMAGE_COLUMNS if key in item]
        if not keys:
            raise UserError(f"an item has {', '.join(map(str, item))}; its image must be called 'image'")
        label = next((item[key] for key in LABEL_COLUMNS if key in item), None)
        return Sample(item[keys[0]], _label(label))
    if isinstance(item, tuple | list) and item and not isinstance(item[0], int | float):
        return Sample(item[0], _label(item[1]) if len(item) > 1 else None)
    return Sample(item)


def _label(label: Any) -> int | None:
    """A class's number; None for anything but a single integer."""
    if isinstance(label, Tensor | np.ndarray) and label.ndim == 0:
        label = label.item()
    return int(label) if isinstance(label, int | np.integer) and not isinstance(label, bool) else None


def _rows(data: Any) -> Iterator[Sample]:
    """The rows of a Hugging Face data set."""
    columns, features = data.column_names, data.features
    if isinstance(columns, dict):
        raise UserError(
            f"data has the splits {', '.join(columns)}; give one, such as data[{next(iter(columns))!r}]"
        )
    image = _column(columns, features, "Image", IMAGE_COLUMNS)
    label = _column(columns, features, "ClassLabel", LABEL_COLUMNS)
    if image is None:
        raise UserError(f"data has the columns {', '.join(columns)}; none of them holds images")
    for row in data:
        yield Sample(row[image], None if label is None else _label(row[label]))


def _column(columns: list[str], features: Any, kind: str, names: tuple[str, ...]) -> str | None:
    """The column with a type of that name, or with one of the usual names."""
    typed = [name for name in columns if type((features or {}).get(name)).__name__ == kind]
    return next(iter([*typed, *(name for name in names if name in columns)]), None)


def _classes(data: Any) -> tuple[str, ...]:
    """The names of a data set's classes, if it says them; a subset has those of its data set."""
    if hasattr(data, "column_names"):
        label = _column(data.column_names, data.features, "ClassLabel", LABEL_COLUMNS)
        names = getattr((data.features or {}).get(label), "names", None)
    else:
        names = getattr(data, "classes", None) or getattr(getattr(data, "dataset", None), "classes", None)
    return tuple(map(str, names or ()))


def _stack(images: list[Tensor], size: int) -> Tensor:
    """Images (1, 3, H, W) as a batch; center-cropped to ``size`` if they differ in shape."""
    if len({image.shape for image in images}) > 1:
        images = [center_crop(image, size) for image in images]
    if len({image.dtype for image in images}) > 1:
        images = [image if image.is_floating_point() else to_float(image) for image in images]
    return torch.cat(images)


def _decode(image: Any, size: int, keep_aspect: bool = False) -> tuple[Tensor, float]:
    """A path, a PIL image or pixels as (1, 3, H, W), and its width / height if it was squeezed."""
    from simplicia.data.image_files import FORMATS, Image, decode, to_square

    if _is_batch(image):
        one = pixels(image)
        if len(one) != 1:
            raise UserError(f"an image is {tuple(image.shape)}; give (3, H, W), (H, W, 3) or grey (H, W)")
        return one.cpu(), 1.0
    if isinstance(image, dict) and ("bytes" in image or "path" in image):  # Hugging Face, not decoded
        image = image["path"] if image.get("bytes") is None else image["bytes"]
    opened = hasattr(image, "convert")
    if not opened and not isinstance(image, str | os.PathLike | bytes):
        raise UserError(f"an image is a {type(image).__name__}; give paths, PIL images, arrays or tensors")
    if isinstance(image, str | os.PathLike) and Path(image).is_dir():
        raise UserError(f"{str(image)!r} is a folder; give its files, or use simplicia encode")
    try:
        if isinstance(image, bytes):
            image, opened = Image.open(io.BytesIO(image), formats=FORMATS), True
        if opened:
            square, ratio = to_square(image, size, keep_aspect)
        else:
            square, ratio = decode(Path(image), size, keep_aspect)
    except Exception as error:  # Pillow raises nearly every exception there is
        name = "an image" if isinstance(image, bytes) else image
        raise UserError(f"{name} cannot be read as an image: {error}") from error
    return torch.tensor(square).permute(2, 0, 1)[None].contiguous(), ratio
