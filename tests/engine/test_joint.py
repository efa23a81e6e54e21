"""Both views in one batch: the same outputs, gradients and statistics as one view after the other."""

import copy

import pytest
import torch
from torch import nn

from simplicia import bottlenecks, encoders, methods
from simplicia.engine import copies
from simplicia.engine.joint import join_views
from simplicia.errors import UserError
from simplicia.layers import BlockLinear

OPTIONS = {"moco": {"queue": 64}, "swav": {"queue": 64, "prototypes": 32}, "dino": {"prototypes": 32}}
SIZES = {
    "sem": {"temperature": 0.5},
    "embed": {},
    "vq": {"dimensions": 3},
    "vq-shared": {"dimensions": 3},
    "gumbel": {},
}


def method_with(name, bottleneck="sem", **options):
    torch.manual_seed(0)
    encoder = encoders.create("tiny")
    sizes = {"simplices": 16, "vertices": 5, **SIZES[bottleneck], **options}
    embedded = bottlenecks.create(bottleneck, encoder.out_features, **sizes)
    return methods.create(name, encoder, embedded, 0.7, hidden=32, **OPTIONS.get(name, {}))


def views(n=8):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, 16, 16, generator=generator) for _ in range(2)]


@pytest.mark.parametrize("bottleneck", ["sem", "embed", "vq", "vq-shared"])
@pytest.mark.parametrize("name", methods.names())
def test_joint_views_match_separate_views(name, bottleneck):
    separate = method_with(name, bottleneck)
    joint = copy.deepcopy(separate)
    parameters = dict(joint.named_parameters())
    join_views(joint)
    assert list(joint.state_dict()) == list(separate.state_dict())
    assert all(p is parameters[key] for key, p in joint.named_parameters())
    outputs = []
    for method in (separate, joint):
        torch.manual_seed(1)
        outputs.append(method(views()))
        outputs[-1].loss.backward()
    one, two = outputs
    torch.testing.assert_close(one.loss, two.loss, rtol=1e-4, atol=1e-4)
    for a, b in zip([*one.features, *one.embeddings], [*two.features, *two.embeddings], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    scale = max(p.grad.abs().max() for p in separate.parameters() if p.grad is not None)
    for (key, p), q in zip(separate.named_parameters(), joint.parameters(), strict=True):
        if p.grad is not None:
            assert (p.grad - q.grad).abs().max() < 1e-4 * scale, key
    for (key, a), b in zip(separate.state_dict().items(), joint.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")
    separate.eval(), joint.eval()
    torch.testing.assert_close(separate.online(views()[0]), joint.online(views()[0]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("module", ["online", "predictor"])
def test_a_direct_call_on_one_view_is_refused(module):
    method = method_with("byol")
    join_views(method)
    inputs = {"online": torch.randn(4, 3, 16, 16), "predictor": torch.randn(4, 256)}
    with pytest.raises(UserError, match="apply_per_view"):
        getattr(method, module)(inputs[module])
    getattr(method.eval(), module)(inputs[module])


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 8, 3), nn.Linear(6, 5), BlockLinear(6, 4, 2)])
def test_a_layer_computes_with_its_copy_in_training_only(layer):
    model = nn.Sequential(layer)
    copies.copy_weights(model)
    assert model[0].weight is layer.weight and list(model.state_dict()) == ["0.weight", "0.bias"]
    x = torch.randn(2, 3, 4, 4) if isinstance(layer, nn.Conv2d) else torch.randn(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        model(x).float().sum().backward()
    assert layer.weight.grad is None and model[0].half_weight.grad is not None
    with torch.no_grad():
        layer.weight.mul_(2)
    assert torch.equal(model.eval()(x), layer(x))
    model[0].refresh()
    assert torch.equal(model[0].half_weight, layer.weight.bfloat16())


@pytest.mark.parametrize("padding", [1, 2])
def test_a_stem_computed_as_a_product_of_patches_is_the_convolution(padding):
    plain = nn.Conv2d(3, 16, 3, 1, padding, bias=False).to(memory_format=torch.channels_last)
    with torch.no_grad():
        plain.weight.copy_(plain.weight.bfloat16())
    layer = copies.CopiedConv2d(plain)
    x = torch.randn(2, 3, 8, 10).bfloat16()
    exact = plain(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        for y in (layer(x), layer(layer.patches(x))):  # two encoders share patches
            torch.testing.assert_close(y.float(), exact, rtol=1e-2, atol=1e-2)
        y.float().square().sum().backward()
    exact.square().sum().backward()
    ours, right = layer.half_weight.grad.float(), plain.weight.grad
    assert (ours - right).norm() < 0.01 * right.norm()
