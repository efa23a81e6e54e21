import pytest
import torch
from torch import nn

from simplicia import bottlenecks, cli, encoders
from simplicia.layers import SynchronisedBatchNorm, synchronise_norms


@pytest.mark.parametrize(("name", "width"), [("tiny", 128), ("resnet18", 512), ("resnet50", 2048)])
@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_encoders_give_pooled_features(name, width, stem):
    encoder = encoders.create(name, stem=stem)
    assert encoder.out_features == width
    assert encoder(torch.randn(2, 3, 32, 32)).shape == (2, width)


def test_wide_resnets_multiply_every_channel():
    with torch.device("meta"):
        for name, factor in (("resnet50x2", 2), ("resnet50x4", 4)):
            encoder = encoders.create(name)
            assert encoder.out_features == 2048 * factor
            assert encoder.conv1.out_channels == 64 * factor


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_equal_to_torchvision_with_its_weights(name):
    import torchvision

    reference = getattr(torchvision.models, name)()
    reference.fc = nn.Identity()
    encoder = encoders.create(name, stem="imagenet")
    encoder.load_state_dict(reference.state_dict(), strict=True)
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(encoder.eval()(x), reference.eval()(x))


def test_forward_hooks_see_the_stages():
    seen = {}
    encoder = encoders.create("resnet18")
    for name in ("layer1", "layer4", "layer4.1"):
        encoder.get_submodule(name).register_forward_hook(
            lambda *arguments, name=name: seen.update({name: arguments[2]})
        )
    features = encoder(torch.randn(2, 3, 32, 32))
    assert list(seen) == ["layer1", "layer4.1", "layer4"] and seen["layer1"].shape == (2, 64, 32, 32)
    assert torch.equal(seen["layer4"].mean((2, 3)), features)


def test_stem_padding_two_gives_the_papers_larger_maps():
    for padding, side in ((1, 32), (2, 34)):
        encoder = encoders.create("resnet18", stem_padding=padding)
        assert encoder.conv1(torch.zeros(1, 3, 32, 32)).shape[-1] == side


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "timm/resnet18", "mobilenetv3_small_050"])
def test_timm_models_by_name(name):
    options = {"img_size": 32} if name.startswith("vit") else {}
    encoder = encoders.create(name, **options).eval()
    assert encoder(torch.randn(2, 3, 32, 32)).shape == (2, encoder.out_features)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: encoders.create("resnet81"), "resnet18"),
        (lambda: encoders.create("resnet18", stem="tiny"), "stem"),
        (lambda: encoders.create("resnet18", depth=3), "depth"),
        (lambda: encoders.create("resnet18", pretrained=True), "timm/"),
        (lambda: bottlenecks.create("sen", 8), "'sem'"),
        (lambda: bottlenecks.create("sem", 8, vertex=3), "vertices"),
        (lambda: bottlenecks.create("none", 8, vertices=3), "vertices"),
    ],
)
def test_unknown_names_suggest_the_nearest(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_synchronised_norms_keep_their_activation():
    encoder = encoders.create("mobilenetv3_small_050").eval()
    for part in encoder.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.bias, -1, 1)  # a missing activation shows
    images = torch.randn(2, 3, 64, 64)
    before = encoder(images)
    synchronise_norms(encoder)
    assert any(isinstance(part, SynchronisedBatchNorm) for part in encoder.modules())
    torch.testing.assert_close(encoder.eval()(images), before)


def test_encoders_that_cannot_take_the_views_are_refused_before_training(tmp_path, capsys):
    words = "pretrain shapes-byol-sem --encoder crossvit_tiny_240 --epochs 1 --batch-size 16 --device cpu"
    assert cli.main([*words.split(), "--out", str(tmp_path / "run"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "encoder 'crossvit_tiny_240' takes no views of 32 pixels" in error and "Traceback" not in error
    assert not (tmp_path / "run").exists()
