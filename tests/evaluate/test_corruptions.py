"""Corruptions: properties of all fifteen, at CIFAR's size and others, and JPEG against a real codec."""

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from simplicia.data.datasets import load
from simplicia.errors import UserError
from simplicia.evaluate.corruptions import _LADDERS, constants, corrupt, gaussian, jpeg, names


@pytest.fixture(scope="module")
def images():
    return load("shapes", "test").images[:16].float() / 255


def at(images, size):
    """Images of any size with detail at every scale, as in photographs, in the colours of the given ones."""
    g, total = generator(), torch.zeros(len(images), 3, size, size)
    for octave in range(1, 7):
        noise = torch.rand(len(images), 3, 2**octave, 2**octave, generator=g)
        total += F.interpolate(noise, (size, size), mode="bilinear", antialias=True) / 1.5**octave
    low, high = total.amin((2, 3), keepdim=True), total.amax((2, 3), keepdim=True)
    colour = F.interpolate(images, (size, size), mode="bilinear")
    return ((total - low) / (high - low) + colour) / 2


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_there_are_fifteen_corruptions():
    assert len(names()) == 15 and names()[0] == "gaussian_noise" and names()[-1] == "jpeg_compression"


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", names())
def test_each_severity_is_farther_from_the_clean_image(images, name, size):
    clean, distances = at(images, size), []
    for severity in range(1, 6):
        result = corrupt(clean, name, severity, generator())
        assert result.shape == clean.shape and result.dtype == torch.float32
        assert result.isfinite().all() and result.min() >= 0 and result.max() <= 1
        distances.append((result - clean).abs().mean().item())
    assert distances[0] > 1e-4 and distances == sorted(set(distances)), distances


@pytest.mark.parametrize("name", names())
def test_equal_generators_give_equal_images(images, name):
    one, same, other = (corrupt(images, name, 3, generator(seed)) for seed in (0, 0, 1))
    assert one.equal(same)
    drawn = name not in (
        "defocus_blur",
        "zoom_blur",
        "brightness",
        "contrast",
        "pixelate",
        "jpeg_compression",
    )
    assert drawn != one.equal(other)


@pytest.mark.parametrize("name", names())
def test_oblong_images_and_one_image(images, name):
    oblong = images[:1, :, :20]  # 20 pixels high
    assert corrupt(oblong, name, 5, generator()).shape == (1, 3, 20, 32)


def test_constants_are_the_published_ones_at_the_published_sizes():
    assert constants("gaussian_noise", 5, 32) == pytest.approx((0.10,))
    assert constants("gaussian_noise", 5, 224) == pytest.approx((0.38,))
    assert constants("jpeg_compression", 1, 32) == pytest.approx((80,))
    assert constants("defocus_blur", 5, 448) == pytest.approx((20, 1.0))  # lengths grow with the image
    assert constants("contrast", 5, 448) == pytest.approx((0.05,))
    assert all(len(small) == len(large) == 5 for small, large, _ in _LADDERS.values())


@given(size=st.integers(16, 500), severity=st.integers(1, 5), name=st.sampled_from(names()))
def test_constants_lie_between_the_published_ones(size, severity, name):
    small, large, lengths = _LADDERS[name]
    for i, result in enumerate(constants(name, severity, size)):
        ends = sorted((small[severity - 1][i], large[severity - 1][i]))
        if i not in lengths or 32 <= size <= 224:
            assert ends[0] - 1e-9 <= result <= ends[1] + 1e-9


def test_noises_have_the_moments_they_name():
    grey = torch.full((4, 3, 64, 64), 0.5)
    (sigma,) = constants("gaussian_noise", 1, 64)
    assert (corrupt(grey, "gaussian_noise", 1, generator()) - grey).std().item() == pytest.approx(
        sigma, rel=0.03
    )
    (photons,) = constants("shot_noise", 1, 64)
    result = corrupt(grey, "shot_noise", 1, generator())
    assert result.mean().item() == pytest.approx(0.5, abs=0.01)
    assert result.var().item() == pytest.approx(0.5 / photons, rel=0.05)
    (share,) = constants("impulse_noise", 3, 64)
    result = corrupt(grey, "impulse_noise", 3, generator())
    assert (result != 0.5).float().mean().item() == pytest.approx(share, rel=0.1)


def test_blurs_keep_a_uniform_image():
    flat = torch.full((2, 3, 32, 32), 0.3)
    for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform", "pixelate"):
        torch.testing.assert_close(corrupt(flat, name, 5, generator()), flat, atol=1e-5, rtol=0)


def test_gaussian_matches_scipy():
    from scipy.ndimage import gaussian_filter

    x = torch.rand(1, 2, 20, 24, generator=generator())
    theirs = [gaussian_filter(c, 1.3, mode="mirror", radius=6) for c in x[0].numpy()]
    assert np.allclose(gaussian(x, 1.3)[0], theirs, atol=1e-5)


@pytest.mark.parametrize("quality", [7, 25, 58, 80])
@pytest.mark.parametrize("size", [32, 40, 64])
def test_jpeg_is_within_a_grey_level_or_two_of_a_real_codec(images, quality, size):
    clean = (at(images, size) * 255).round() / 255
    differences, losses = [], []
    for image, ours in zip(clean, jpeg(clean, quality), strict=True):
        file = io.BytesIO()
        pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(file, "JPEG", quality=quality)
        theirs = np.asarray(Image.open(file)).astype(float)
        differences.append(np.abs(ours.permute(1, 2, 0).numpy() * 255 - theirs).mean())
        losses.append(np.abs(pixels - theirs).mean())
    assert np.mean(differences) < 1.5 and np.mean(differences) < np.mean(losses) / 3


@settings(max_examples=10)
@given(st.integers(1, 100), st.integers(1, 40), st.integers(1, 40))
def test_jpeg_takes_any_size_and_quality(quality, height, width):
    result = jpeg(torch.rand(2, 3, height, width, generator=generator()), quality)
    assert result.shape == (2, 3, height, width) and result.min() >= 0 and result.max() <= 1


def test_invalid_requests_raise(images):
    with pytest.raises(UserError, match="did you mean 'fog'"):
        corrupt(images, "fogg", 1)
    with pytest.raises(UserError, match="severity is 6"):
        corrupt(images, "fog", 6)
    with pytest.raises(ValueError, match="float"):
        corrupt((images * 255).byte(), "fog", 1)
