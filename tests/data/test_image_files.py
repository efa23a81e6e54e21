"""Image files of every kind become upright RGB squares."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageOps

from simplicia.data import image_files
from simplicia.data.datasets import load


def decode(path, size):
    return image_files.decode(path, size)[0]


def save_image(path, colour=(200, 30, 90), size=(40, 40), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path, **options)
    return path


@pytest.mark.parametrize(
    "name, mode, expected",
    [("rgb.png", "RGB", (200, 30, 90)), ("palette.gif", "P", None), ("cmyk.jpg", "CMYK", (200, 30, 90)),
     ("grey.pgm", "L", (88, 88, 88)), ("bit.png", "1", None), ("web.webp", "RGB", (200, 30, 90)),
     ("alpha.png", "RGBA", (200, 30, 90)), ("la.png", "LA", (88, 88, 88)), ("b.bmp", "RGB", (200, 30, 90)),
     ("ycc.tif", "YCbCr", (200, 30, 90))],
)  # fmt: skip
def test_every_mode_becomes_rgb(tmp_path, name, mode, expected):
    colour = (200, 30, 90) if expected else (255, 255, 255)
    pixels = decode(save_image(tmp_path / name, colour, mode=mode), 32).reshape(-1, 3).astype(int)
    assert abs(pixels - (expected or colour)).max() <= 6


def test_transparent_pixels_become_white(tmp_path):
    for name, image in {
        "rgba.png": Image.new("RGBA", (40, 40), (0, 0, 0, 0)),
        "la.png": Image.new("LA", (40, 40), (0, 0)),
        "half.png": Image.new("RGBA", (40, 40), (255, 255, 255, 128)),
        "palette.png": Image.new("P", (40, 40), 0),
        "key.png": Image.new("RGB", (40, 40), (1, 2, 3)),
    }.items():
        key = {"palette.png": 0, "key.png": (1, 2, 3)}.get(name)
        image.save(tmp_path / name, **({} if key is None else {"transparency": key}))
        assert (decode(tmp_path / name, 32) == 255).all(), name


def test_16_bit_and_float_images_are_scaled_not_clipped(tmp_path):
    ramp = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (64, 1))
    expected = np.round(ramp / 257)[..., None]
    Image.fromarray(ramp).save(tmp_path / "a.png")
    Image.fromarray(ramp).save(tmp_path / "a.tif")
    (tmp_path / "a.pgm").write_bytes(b"P5 64 64 65535\n" + ramp.astype(">u2").tobytes())
    Image.fromarray(ramp.astype(np.int32)).save(tmp_path / "int.tif")
    Image.fromarray((ramp / 65535).astype(np.float32)).save(tmp_path / "unit.tif")
    Image.fromarray((ramp / 257).astype(np.float32)).save(tmp_path / "bytes.tif")
    Image.fromarray((ramp.astype(np.float32) - 30000) * 7).save(tmp_path / "any.tif")
    for path in sorted(tmp_path.iterdir()):
        assert abs(decode(path, 64).astype(int) - expected).max() <= 1, path.name
    for top in (255, 4095):
        Image.fromarray((ramp // (65536 // (top + 1))).astype(np.uint16)).save(tmp_path / "few.png")
        Image.fromarray((ramp // (65536 // (top + 1))).astype(np.int32)).save(tmp_path / "few.tif")
        for name in ("few.png", "few.tif"):
            assert abs(decode(tmp_path / name, 64).astype(int) - expected).max() <= 1, (top, name)
    Image.fromarray(np.full((9, 9), -5, np.int32)).save(tmp_path / "flat.tif")
    Image.fromarray(np.full((9, 9), np.nan, np.float32)).save(tmp_path / "nan.tif")
    assert (decode(tmp_path / "flat.tif", 8) == 0).all() and (decode(tmp_path / "nan.tif", 8) == 0).all()


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, orientation, suffix):
    """Compare with Pillow: transpose the full image first."""
    corners = np.zeros((48, 64, 3), np.uint8)
    corners[:24, :32], corners[:24, 32:], corners[24:, :32] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(corners).save(path, exif=exif, quality=95)
    upright = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    left, top = (upright.width - 48) // 2, (upright.height - 48) // 2
    centre = upright.crop((left, top, left + 48, top + 48)).resize((32, 32), Image.Resampling.BICUBIC)
    assert abs(decode(path, 32).astype(int) - np.asarray(centre)).mean() < 3
    images = load(tmp_path, size=32, keep_aspect=True)
    squeezed = np.asarray(upright.resize((32, 32), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert abs(images.images[0].numpy().astype(int) - squeezed).mean() < 3
    assert images.aspect_ratios.tolist() == [pytest.approx(upright.width / upright.height)]


def test_extreme_aspect_ratios_are_center_cropped(tmp_path):
    wide = np.zeros((50, 150, 3), np.uint8)
    wide[:, 50:100] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (decode(tmp_path / "wide.png", 32) == 255).all()
    for size in ((1, 5000), (5000, 1), (1, 1), (2, 65000)):
        assert (decode(save_image(tmp_path / "line.jpg", (7, 7, 7), size=size), 224) == 7).all()


def test_animations_give_their_first_frame(tmp_path):
    frames = [Image.new("RGB", (40, 40), (level, level, level)) for level in (10, 250)]
    for name in ("a.gif", "a.png", "a.webp", "a.tiff"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        assert abs(decode(tmp_path / name, 32).astype(int) - 10).max() <= 3


def test_large_jpegs_decoded_at_reduced_size_stay_accurate(tmp_path):
    """Compare with the full image, resized once."""
    wave = 128 + 100 * np.sin(np.arange(1600) / 60)
    Image.fromarray((wave[None] * np.ones((1200, 1))).astype(np.uint8)).save(tmp_path / "a.jpg", quality=95)
    full = Image.open(tmp_path / "a.jpg").convert("RGB").crop((200, 0, 1400, 1200))
    full = np.asarray(full.resize((64, 64), Image.Resampling.BICUBIC))
    assert abs(decode(tmp_path / "a.jpg", 64).astype(int) - full).max() <= 4


def test_16_bit_images_are_scaled_before_cropping(tmp_path):
    levels = np.full((20, 40), 2000, dtype=np.uint16)
    levels[0, 0] = 60000  # outside of the center crop
    Image.fromarray(levels).save(tmp_path / "a.png")
    cropped, aspect_ratio = image_files.decode(tmp_path / "a.png", 8)
    squeezed, _ = image_files.decode(tmp_path / "a.png", 8, keep_aspect=True)
    assert aspect_ratio == 2 and int(cropped[4, 4, 0]) == int(squeezed[4, 4, 0])


@pytest.mark.parametrize(("mode", "colour", "grey"), [("I;16", 700, 44), ("LA", (0, 0), 255)])
def test_a_large_image_is_decoded_in_little_memory(tmp_path, mode, colour, grey):
    """A small file of 69 million pixels; in float64, or as layers to composite, they take over 1.3 GiB."""
    Image.new(mode, (8300, 8300), colour).save(tmp_path / "a.png")
    code = f"""
import resource
from pathlib import Path
from simplicia.data import image_files
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert (image_files.decode(Path({str(tmp_path / "a.png")!r}), 32)[0] == {grey}).all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.8  # GiB


def test_threads_decode_a_bounded_number_of_pixels_together(tmp_path, monkeypatch):
    paths = [save_image(tmp_path / f"{i}.png", (7, 7, 7), size=(40, 30)) for i in range(8)]
    monkeypatch.setattr(image_files, "MOST_PIXELS", 2500)  # two images
    decoding, most, real = [], [], image_files.to_square

    def slowly(image, *arguments):
        decoding.append(image.width * image.height)
        most.append(sum(decoding))
        time.sleep(0.02)
        result = real(image, *arguments)
        decoding.pop()
        return result

    monkeypatch.setattr(image_files, "to_square", slowly)
    with ThreadPoolExecutor(8) as threads:
        images = list(threads.map(lambda path: image_files.decode(path, 8), paths))
    assert len(images) == 8 and max(most) == 2400
