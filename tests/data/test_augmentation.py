"""Views agree with torchvision operation by operation, and never wait for the host."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as TF

from simplicia.data import augmentation as V
from simplicia.errors import UserError

MEAN, STD = (0.48, 0.45, 0.41), (0.22, 0.23, 0.24)
IDENTITY = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
CPU = torch.device("cpu")
BYOL = V.ViewSettings(blur=(1.0, 0.1), solarise=(0.0, 0.2))
NOTHING = V.ViewSettings(
    crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0), jitter_prob=0, grey=0, blur=(0.0,), solarise=(0.0,), flip=0
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def uint8_images(n=6, height=32, width=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, height, width), dtype=torch.uint8, generator=generator)


def float_images(n=6, height=17, width=23, seed=0):
    return uint8_images(n, height, width, seed).float() / 255


def assert_close(ours, reference, tolerance=1e-5):
    torch.testing.assert_close(ours, reference, rtol=0, atol=tolerance)


def each(operation, images, *parameters):
    """torchvision's operation, sample by sample."""
    rows = zip(*(p.tolist() for p in parameters), strict=True)
    return torch.stack([operation(image, *row) for image, row in zip(images, rows, strict=True)])


# ---- operations


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [8, 32, 45])
@pytest.mark.parametrize("height, width", [(32, 32), (37, 51), (96, 64)])
def test_resized_crop_agrees_with_torchvision(height, width, size, interpolation):
    images = float_images(8, height, width)
    boxes = V.sample_boxes(8, height, width, (0.02, 1.0), (0.5, 2.0), CPU)
    boxes[0] = torch.tensor([0, 0, height, width])
    boxes[1] = torch.tensor([height - 1, width - 1, 1, 1])
    boxes[2] = torch.tensor([3, 5, 2, 20])  # up-scaled in one direction, perhaps down-scaled in the other
    mode = InterpolationMode(interpolation)
    reference = [
        TF.resized_crop(image, *box, [size, size], interpolation=mode, antialias=True).clamp(0, 1)
        for image, box in zip(images, boxes.tolist(), strict=True)
    ]
    assert_close(V.resized_crop(images, boxes, size, interpolation), torch.stack(reference))


@pytest.mark.parametrize(("extent", "size"), [(224, 224), (96, 224), (512, 64)])
def test_16_bit_products_round_less_than_8_bit_pixels(extent, size):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (24, 3, extent, extent), generator=generator) / 255
    torch.manual_seed(0)
    boxes = V.sample_boxes(24, extent, extent, (0.08, 1.0), (3 / 4, 4 / 3), torch.device("cpu"))
    top, left, height, width = boxes.unbind(1)
    rows = V._resize_weights(top, height, size, extent, "bicubic")
    columns = V._resize_weights(left, width, size, extent, "bicubic")
    exact = V._separable(images.double(), rows.double(), columns.double())
    error = (V._separable(images.half(), rows.half(), columns.half()) - exact).abs().max()
    assert 0 < error < 0.5 / 255


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_crops_ignore_pixels_outside_their_box(data):
    height, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = torch.tensor(
        [[top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))]]
    )
    size = data.draw(st.integers(2, 40))
    image = torch.zeros(1, 3, height, width)
    image[:, :, top : top + box[0, 2], left : left + box[0, 3]] = 0.5
    assert_close(V.resized_crop(image, box, size), torch.full((1, 3, size, size), 0.5))


@pytest.mark.parametrize(
    "kind, operation",
    list(enumerate((TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue))),
)
@pytest.mark.parametrize("levels", [256, 3])  # few levels: many ties between channels
def test_each_colour_adjustment_agrees_with_torchvision(kind, operation, levels):
    images = (float_images() * levels).floor().clamp(max=levels - 1) / (levels - 1)
    hues, others = [-0.5, -0.21, 0.0, 0.07, 0.34, 0.5], [0.0, 0.3, 0.9, 1.0, 1.4, 3.0]
    factors = torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(6, 1)
    factors[:, kind] = torch.tensor(hues if kind == V.HUE else others)
    adjusted = V.colour_jitter(images, factors, torch.arange(4).repeat(6, 1))
    assert_close(adjusted, each(operation, images, factors[:, kind]))


def test_colour_jitter_agrees_with_torchvision_in_every_order():
    steps = TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue
    order = torch.tensor(list(itertools.permutations(range(4))))
    images = float_images(len(order))
    factors, _ = V.sample_jitter(len(order), V.ViewSettings(saturation=0.8, hue=0.4), CPU)
    jittered = V.colour_jitter(images, factors, order)
    for i, image in enumerate(images):
        for kind in order[i].tolist():
            image = steps[kind](image, factors[i, kind].item())
        # Hue magnifies rounding errors where a later step left a pixel almost grey.
        assert_close(jittered[i], image, 3e-5)


@pytest.mark.parametrize("height, width, kernel_size", [(32, 32, 3), (17, 23, 5), (40, 33, 23)])
def test_gaussian_blur_agrees_with_torchvision(height, width, kernel_size):
    images, sigma = float_images(6, height, width), torch.tensor([0.1, 0.4, 0.8, 1.3, 2.0, 5.0])
    blurred = V.gaussian_blur(images, sigma, kernel_size)
    reference = each(lambda image, s: TF.gaussian_blur(image, [kernel_size] * 2, [s, s]), images, sigma)
    assert_close(blurred, reference)


@pytest.mark.parametrize("size, kernel_size", [(8, 3), (32, 3), (64, 7), (96, 9), (224, 23)])
def test_blur_kernel_is_odd_and_a_tenth_of_the_size(size, kernel_size):
    point = torch.zeros(1, 3, size, size, dtype=torch.uint8)
    point[..., size // 2, size // 2] = 255
    blurred = view_of(point, blur=(1.0,), blur_sigma=(99.0, 99.0))
    assert (blurred[0, 0] > 1e-4).sum() == kernel_size**2


def test_greyscale_agrees_with_torchvision():
    assert_close(V.greyscale(float_images()), TF.rgb_to_grayscale(float_images(), 1), 1e-6)


def test_normalise_agrees_with_torchvision():
    images = float_images()
    assert_close(V.normalise(images, MEAN, STD), TF.normalize(images, list(MEAN), list(STD)))


@pytest.mark.parametrize("height, width", [(48, 48), (61, 83), (100, 40), (20, 30)])
def test_eval_view_resizes_and_center_crops(height, width):
    images = uint8_images(2, height, width)
    resized = TF.resize(images.float() / 255, [37], InterpolationMode.BICUBIC, antialias=True).clamp(0, 1)
    reference = TF.normalize(TF.center_crop(resized, [32, 32]), list(MEAN), list(STD))
    assert_close(V.eval_view(images, 32, MEAN, STD), reference)


def test_eval_view_does_not_crop_images_of_the_right_size():
    images = uint8_images()
    assert torch.equal(V.eval_view(images, 32, *IDENTITY), images.float() / 255)


# ---- sampling


@pytest.mark.parametrize(
    "height, width, scale, ratio",
    [
        (32, 32, (0.08, 1.0), (3 / 4, 4 / 3)),
        (61, 33, (0.2, 0.6), (3 / 4, 4 / 3)),
        (20, 90, (0.5, 1.0), (3 / 4, 4 / 3)),  # many draws fall back to the centre
        (90, 20, (0.9, 1.0), (1.0, 2.0)),  # all do
    ],
)
def test_boxes_have_torchvisions_distribution(height, width, scale, ratio):
    boxes = V.sample_boxes(20_000, height, width, scale, ratio, CPU)
    top, left, h, w = boxes.unbind(1)
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2:] >= 1).all()
    assert (top + h <= height).all() and (left + w <= width).all()
    crop, image = v2.RandomResizedCrop(8, scale=scale, ratio=ratio), torch.empty(3, height, width)
    drawn = [crop.make_params([image]) for _ in range(1500)]
    names = ("top", "left", "height", "width")
    reference = torch.tensor([[params[name] for name in names] for params in drawn]).float()
    ours = boxes.float()
    error = 4 * (reference.var(0) / len(reference) + ours.var(0) / len(ours)).sqrt() + 1e-6
    assert ((ours.mean(0) - reference.mean(0)).abs() <= error).all()
    assert_close(ours.std(0), reference.std(0), 0.06 * max(height, width) ** 0.5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 50), st.integers(1, 50), st.floats(0.001, 1), st.floats(0.1, 8), st.floats(1, 3))
def test_boxes_lie_inside_images_of_any_size(height, width, scale, ratio, spread):
    top, left, h, w = V.sample_boxes(50, height, width, (scale, 1.0), (ratio, ratio * spread), CPU).unbind(1)
    assert (torch.minimum(top, left) >= 0).all() and (torch.minimum(h, w) >= 1).all()
    assert (top + h <= height).all() and (left + w <= width).all()


@pytest.mark.parametrize(("height", "width"), [(300, 600), (500, 200)])
def test_boxes_in_squeezed_images_have_the_distribution_of_the_originals(height, width):
    side, scale, ratio = 256, (0.2, 1.0), (3 / 4, 4 / 3)
    aspect_ratios = torch.full((20_000,), width / height)
    squeezed = V.sample_boxes(20_000, side, side, scale, ratio, CPU, aspect_ratios)
    scaling = torch.tensor([height, width, height, width]) / side
    original = V.sample_boxes(20_000, height, width, scale, ratio, CPU)
    ours, reference = squeezed * scaling, original.float()
    error = 4 * ((reference.var(0) + ours.var(0)) / 20_000).sqrt() + scaling / 2
    assert ((ours.mean(0) - reference.mean(0)).abs() <= error).all()
    assert ((ours.std(0) / reference.std(0)).log().abs() < 0.03).all()
    shape = (ours[:, 3] / ours[:, 2]).log()
    assert shape.min() > math.log(3 / 4) - 0.05 and shape.max() < math.log(4 / 3) + 0.05


def test_aspect_ratio_1_changes_no_box():
    torch.manual_seed(0)
    plain = V.sample_boxes(50, 40, 40, (0.08, 1.0), (3 / 4, 4 / 3), CPU)
    torch.manual_seed(0)
    assert V.sample_boxes(50, 40, 40, (0.08, 1.0), (3 / 4, 4 / 3), CPU, torch.ones(50)).equal(plain)


@pytest.mark.parametrize("aspect", [5000.0, 1 / 5000, 3.0])
def test_boxes_lie_inside_for_extreme_aspect_ratios(aspect):
    boxes = V.sample_boxes(500, 32, 32, (0.08, 1.0), (3 / 4, 4 / 3), CPU, torch.full((500,), aspect))
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= 32).all()


def smooth_image(height, width):
    y, x = torch.linspace(0, 6, height)[:, None], torch.linspace(0, 9, width)
    return (torch.stack([x.sin() + y.cos(), (x + y).sin(), (x - y).cos()]) / 4 + 0.5).clamp(0, 1)[None]


def test_crops_of_squeezed_and_original_images_agree():
    image = smooth_image(120, 240)
    squeezed = TF.resize(image, [120, 120], antialias=True)
    original = V.resized_crop(image, torch.tensor([[20, 60, 60, 80]]), 32)
    assert_close(V.resized_crop(squeezed, torch.tensor([[20, 30, 60, 40]]), 32), original, 0.01)


@pytest.mark.parametrize(("height", "width"), [(100, 160), (150, 100)])
def test_center_crops_of_squeezed_and_original_images_agree(height, width):
    image = (smooth_image(height, width) * 255).round().byte()
    squeezed = TF.resize(image, [80, 80], antialias=True)
    cropped = V.center_crop_squeezed(squeezed.expand(300, -1, -1, -1), torch.full((300,), width / height))
    expected = V.center_crop(image, 80)
    assert cropped.shape == (300, 3, 80, 80) and cropped[0].equal(cropped[-1])
    assert (cropped[0].int() - expected[0].int()).abs().max() <= 6


def test_box_positions_are_uniform():
    boxes = V.sample_boxes(9_000, 4, 4, (0.25, 0.25), (1.0, 1.0), CPU)
    positions, counts = boxes.unique(dim=0, return_counts=True)
    assert positions.tolist() == [[top, left, 2, 2] for top in range(3) for left in range(3)]
    assert (counts - 1000).abs().max() < 120


def test_jitter_factors_and_orders_have_torchvisions_distribution():
    strengths = V.ViewSettings(brightness=0.4, contrast=1.5, saturation=0.2, hue=0.1)
    factors, order = V.sample_jitter(24_000, strengths, CPU)
    low, high = torch.tensor([0.6, 0.0, 0.8, -0.1]), torch.tensor([1.4, 2.5, 1.2, 0.1])
    assert (factors >= low - 1e-6).all() and (factors <= high + 1e-6).all()
    assert_close(factors.mean(0), (low + high) / 2, 0.02)
    assert_close(factors.var(0), (high - low) ** 2 / 12, 0.02)
    _, counts = order.unique(dim=0, return_counts=True)
    assert len(counts) == 24 and (counts - 1000).abs().max() < 150


def test_probabilities_zero_and_one_are_exact():
    before, after = torch.zeros(100_000, 1, 1, 1), torch.ones(100_000, 1, 1, 1)
    assert not V.sometimes(0.0, after, before).any()
    assert V.sometimes(1.0, after, before).all()
    assert abs(V.sometimes(0.2, after, before).mean() - 0.2) < 0.01


def test_samples_change_as_a_unit():
    before, after = torch.zeros(50, 3, 4, 4), torch.ones(50, 3, 4, 4)
    shares = V.sometimes(0.5, after, before).mean((1, 2, 3))
    assert set(shares.tolist()) == {0.0, 1.0}


# ---- views


def view_of(images, **changes):
    return V.Views(replace(NOTHING, **changes), images.shape[2], *IDENTITY)(images)[0]


def test_each_setting_controls_its_own_operation():
    images = uint8_images()
    pixels = images.float() / 255
    assert_close(view_of(images), pixels, 1e-6)
    assert_close(view_of(images, flip=1.0), pixels.flip(3), 1e-6)
    assert_close(view_of(images, grey=1.0), V.greyscale(pixels).expand(-1, 3, -1, -1), 1e-6)
    assert_close(view_of(images, solarise=(1.0,)), TF.solarize(pixels, 0.5), 1e-6)
    blurred = V.gaussian_blur(pixels, torch.full((6,), 0.7), 3)
    assert_close(view_of(images, blur=(1.0,), blur_sigma=(0.7, 0.7)), blurred)
    still = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
    assert_close(view_of(images, jitter_prob=1.0, **still), pixels, 1e-6)
    for name in still:
        strengths = {**still, name: 0.4}
        assert (view_of(images, jitter_prob=1.0, **strengths) - pixels).abs().amax((1, 2, 3)).min() > 1e-3
        assert_close(view_of(images, jitter_prob=0.0, **strengths), pixels, 1e-6)


def test_operations_are_applied_in_order():
    images = uint8_images()
    grey = V.greyscale(images.float() / 255).expand(-1, 3, -1, -1)
    expected = TF.solarize(V.gaussian_blur(grey, torch.full((6,), 0.7), 3), 0.5)
    ours = view_of(images, grey=1.0, blur=(1.0,), blur_sigma=(0.7, 0.7), solarise=(1.0,))
    assert_close(ours, expected)


def test_samples_and_views_get_different_parameters():
    images = uint8_images(1).expand(8, -1, -1, -1)
    first, second = V.Views(BYOL, 24, MEAN, STD)(images)
    assert first.shape == second.shape == (8, 3, 24, 24)
    assert first.dtype == torch.float32 and first.is_contiguous()
    everything = torch.cat((first, second)).flatten(1)
    assert torch.pdist(everything).min() > 1


def test_batched_operations_equal_single_samples():
    images, n = float_images(6, 32, 32), 6
    boxes = V.sample_boxes(n, 32, 32, (0.08, 1.0), (3 / 4, 4 / 3), CPU)
    factors, order = V.sample_jitter(n, BYOL, CPU)
    sigma = torch.rand(n) + 0.1

    def pipeline(i):
        x = V.resized_crop(images[i], boxes[i], 20)
        return V.gaussian_blur(V.colour_jitter(x, factors[i], order[i]), sigma[i], 3)

    one_by_one = torch.cat([pipeline(slice(i, i + 1)) for i in range(n)])
    assert_close(pipeline(slice(None)), one_by_one)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_views_of_extreme_images_stay_in_range(interpolation):
    black, checks = torch.zeros(8, 3, 33, 20, dtype=torch.uint8), torch.zeros(8, 3, 33, 20, dtype=torch.uint8)
    checks[:, :, ::2, ::2] = 255
    flat_red = black.clone()
    flat_red[:, 0] = 255
    settings = replace(
        BYOL, interpolation=interpolation, jitter_prob=1.0, blur=(1.0, 1.0), solarise=(0.0, 0.5)
    )
    views = V.Views(settings, 32, *IDENTITY)
    for images in (black, black + 255, black + 128, checks, flat_red):
        for view in views(images):
            assert view.isfinite().all() and view.min() >= 0 and view.max() <= 1 + 1e-6


def test_the_seed_determines_the_views():
    views, images = V.Views(BYOL, 32, MEAN, STD), uint8_images()
    torch.manual_seed(3)
    first = views(images)
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(first, views(images), strict=True))


def test_crop_flip_changes_no_colour():
    images = torch.tensor([200, 30, 90], dtype=torch.uint8)[:, None, None].expand(16, 3, 40, 40)
    (view,) = V.Views(V.ViewSettings.crop_flip((0.2, 1.0)), 32, *IDENTITY)(images)
    assert_close(view, images[:, :, :32, :32] / 255)


def test_autocast_does_not_change_views():
    views, images = V.Views(BYOL, 32, MEAN, STD), uint8_images()
    torch.manual_seed(0)
    exact = views(images)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(torch.equal(a, b) for a, b in zip(exact, views(images), strict=True))


# ---- no waiting for the host


def test_no_operation_reads_data_on_the_host():
    views = V.Views(BYOL, 24, MEAN, STD)
    with FakeTensorMode():  # has no values: reading one, or branching on it, raises
        images = torch.empty(4, 3, 40, 36, dtype=torch.uint8)
        for aspect_ratios in (None, torch.empty(4)):
            shapes = [tuple(view.shape) for view in views(images, aspect_ratios)]
            assert shapes == [(4, 3, 24, 24)] * 2
        assert V.eval_view(images, 24, MEAN, STD).shape == (4, 3, 24, 24)


@pytest.mark.parametrize("aspect_ratios", [None, torch.tensor([0.5, 1.0, 3.0])])
def test_views_compile_to_one_graph(aspect_ratios):
    views, images = V.Views(replace(BYOL, blur=(0.5,), solarise=(0.2,)), 24, MEAN, STD), uint8_images(3)
    compiled = torch.compile(views, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    ours = compiled(images, aspect_ratios)
    torch.manual_seed(0)
    for a, b in zip(ours, views(images, aspect_ratios), strict=True):
        assert_close(a, b)


@pytest.mark.gpu
def test_views_can_be_captured_in_a_cuda_graph():
    views, images = V.Views(BYOL, 32, MEAN, STD), uint8_images().cuda()
    aspect_ratios = torch.linspace(0.5, 2, len(images), device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        views(images, aspect_ratios)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = views(images, aspect_ratios)
    graph.replay()
    first = captured[0].clone()
    graph.replay()
    assert first.isfinite().all() and not torch.equal(first, captured[0])  # new random numbers every time


# ---- errors


@pytest.mark.parametrize(
    "change",
    [
        {"crop_scale": (0.5, 0.2)},
        {"crop_scale": (0.0, 1.0)},
        {"crop_scale": (0.5, 1.5)},
        {"crop_ratio": (0.0, 1.0)},
        {"crop_ratio": (1.0, float("inf"))},
        {"blur_sigma": (-1.0, 2.0)},
        {"interpolation": "nearest"},
        {"brightness": -0.1},
        {"contrast": float("nan")},
        {"hue": 0.6},
        {"jitter_prob": 1.1},
        {"grey": -0.1},
        {"flip": 2.0},
        {"blur": 0.5},
        {"blur": (0.1, 1.2)},
        {"blur": (0.1,)},
        {"blur": (), "solarise": ()},
    ],
)
def test_settings_out_of_range_raise_with_their_name(change):
    with pytest.raises(UserError, match=rf"{next(iter(change))} is .*; .*(must|choose)"):
        V.Views(V.ViewSettings(**change), 32, MEAN, STD)


def test_invalid_sizes_statistics_and_images_raise():
    for size, mean, std in [(1, MEAN, STD), (32, (0.5,), STD), (32, MEAN, (0.2, 0.0, 0.2))]:
        with pytest.raises(UserError, match=r"; .* must "):
            V.Views(BYOL, size, mean, std)
    for images in (float_images(), uint8_images()[0], uint8_images()[:, :1]):
        with pytest.raises(UserError, match=r"they must be torch.uint8 of shape"):
            V.Views(BYOL, 32, MEAN, STD)(images)
