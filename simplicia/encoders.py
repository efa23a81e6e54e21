"""Encoders: ResNets for small and large images, and any timm model by name.

Every encoder maps images (N, 3, H, W) to pooled features (N, out_features). Our ResNets' parameters have
torchvision's names, so state_dicts are interchangeable.
"""

import copy
import difflib
from typing import Any, Literal

import torch
from torch import Tensor, nn

from simplicia.errors import UserError, is_out_of_memory, reason, unknown
from simplicia.layers import activate

_RESNETS: dict[str, dict] = {
    "resnet18": {"bottleneck": False, "depths": (2, 2, 2, 2), "width": 64},
    "resnet50": {"bottleneck": True, "depths": (3, 4, 6, 3), "width": 64},
    "resnet50x2": {"bottleneck": True, "depths": (3, 4, 6, 3), "width": 128},
    "resnet50x4": {"bottleneck": True, "depths": (3, 4, 6, 3), "width": 256},
    # three narrow stages at half the resolution: for CPUs, the demo and the tests
    "tiny": {"bottleneck": False, "depths": (1, 1, 1), "width": 32, "stem_stride": 2},
}
GIVEN = "given"  # the encoder's name in a run that got it from Python
# a note about the tiny encoder, for messages where it is chosen and exported
NOT_THEIRS = " (of Simplicia only; torchvision and timm load resnet18: --encoder resnet18)"
# a block's input, separately for its convolutions and its shortcut
Forked = tuple[Tensor, Tensor]


def names() -> list[str]:
    """Return the built-in encoders; any name of ``timm.list_models()`` works too.

    >>> names()
    ['resnet18', 'resnet50', 'resnet50x2', 'resnet50x4', 'tiny']
    """
    return list(_RESNETS)


def check(name: str) -> None:
    """Raise a UserError if no encoder has this name.

    >>> check("resnet18")
    """
    if name in names() or name == GIVEN:
        return
    import timm

    timm_name = name.removeprefix("timm/")
    if not timm.is_model(timm_name.split(".")[0]):
        near = difflib.get_close_matches(timm_name, [*names(), *timm.list_models()], n=3, cutoff=0.5)
        raise unknown("encoder", name, near or names())


def create(
    name: str,
    stem: Literal["small", "imagenet"] = "small",
    stem_padding: int = 1,
    pretrained: bool = False,
    **options: Any,
) -> nn.Module:
    """Build an encoder with ``.out_features``.

    ``stem`` and ``stem_padding`` apply to the built-in ResNets: "small" is a 3x3 convolution without pooling
    (the paper's code pads by 2), "imagenet" the usual 7x7 with pooling. Other names are timm models
    ("timm/resnet50" for timm's ResNet); timm gets ``pretrained`` and ``options``.

    >>> encoder = create("resnet18", stem="small")
    >>> encoder(torch.randn(2, 3, 32, 32)).shape, encoder.out_features
    (torch.Size([2, 512]), 512)
    """
    if name in _RESNETS:
        if pretrained:
            raise UserError(
                f"encoder {name!r} has no pretrained weights; 'timm/resnet50' and other timm models do"
            )
        if options:
            raise unknown(f"option of encoder {name!r}:", next(iter(options)), ["stem", "stem_padding"])
        return ResNet(**_RESNETS[name], stem=stem, stem_padding=stem_padding)
    import timm

    check(name)
    model = timm.create_model(name.removeprefix("timm/"), pretrained=pretrained, num_classes=0, **options)
    width: Any = getattr(model, "head_hidden_size", None) or model.num_features
    return _OtherEncoder(model, int(width))


def create_sized(name: str, size: int, **options: Any) -> tuple[nn.Module, dict[str, int]]:
    """Build a timm model for images of a size, and return what said so: nothing if it takes any size.

    >>> create_sized("timm/resnet18", 64)[1]
    {}
    """
    try:  # transformers are built for a size
        return create(name, img_size=size, **options), {"img_size": size}
    except TypeError:
        return create(name, **options), {}


def wrap(module: nn.Module, size: int) -> nn.Module:
    """A copy of any module that maps images (N, 3, size, size) to (N, features), as an encoder.

    >>> wrap(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16)), 8).out_features
    16
    """
    module = copy.deepcopy(module).cpu()
    return _OtherEncoder(module, width_of(module, size, "the encoder"))


def width_of(module: nn.Module, size: int, name: str, what: str = "images") -> int:
    """How many features a module gives of an image; a UserError with its name if it takes no such images.

    >>> width_of(create("tiny"), 32, "the encoder")
    128
    """
    trained = module.training
    try:
        with torch.no_grad():
            features = module.eval()(torch.zeros(2, 3, size, size))
    except Exception as error:  # the user's own code
        if is_out_of_memory(error):
            raise
        raise UserError(f"{name} takes no {what} of {size} pixels: {reason(error)}") from error
    finally:
        module.train(trained)
    shape = tuple(getattr(features, "shape", ()))
    if len(shape) != 2 or shape[0] != 2:
        given = f"shape {shape}" if shape else f"type {type(features).__name__}"
        raise UserError(f"{name} gives features of {given} for 2 images; they must be (N, features)")
    return shape[1]


class ResNet(nn.Module):
    """A residual network that ends with global average pooling (He et al., https://arxiv.org/abs/1512.03385)."""

    def __init__(
        self,
        bottleneck: bool,
        depths: tuple[int, ...],
        width: int = 64,
        stem: Literal["small", "imagenet"] = "small",
        stem_padding: int = 1,
        stem_stride: int = 1,  # of the small stem
    ):
        super().__init__()
        if stem == "small":
            self.conv1 = nn.Conv2d(3, width, 3, stem_stride, stem_padding, bias=False)
            self.maxpool: nn.Module = nn.Identity()
        elif stem == "imagenet":
            self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
            self.maxpool = nn.MaxPool2d(3, 2, 1)
        else:
            raise unknown("stem", stem, ["small", "imagenet"])
        self.bn1 = nn.BatchNorm2d(width)
        channels = width
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                stride = 2 if i > 0 and j == 0 else 1
                blocks.append(_Block(channels, width * 2**i, stride, bottleneck))
                channels = blocks[-1].out_channels
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.stages = len(depths)
        self.out_features = channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(activate(self.bn1, self.conv1(x)))
        for i in range(self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
        return x.mean((2, 3))

    def blocks(self) -> list[Any]:
        """Return all residual blocks, first to last.

        >>> len(create("tiny").blocks())
        3
        """
        return [block for i in range(self.stages) for block in getattr(self, f"layer{i + 1}")]


class _Block(nn.Module):
    """Two 3x3 convolutions; a bottleneck has 1x1, 3x3 and 1x1, the last with four times the width."""

    def __init__(self, channels: int, width: int, stride: int, bottleneck: bool):
        super().__init__()
        shapes = [(width, 3, stride), (width, 3, 1)]
        if bottleneck:
            shapes = [(width, 1, 1), (width, 3, stride), (width * 4, 1, 1)]
        self.depth, self.out_channels = len(shapes), shapes[-1][0]
        inputs = channels
        for i, (out, kernel, step) in enumerate(shapes, 1):
            setattr(self, f"conv{i}", nn.Conv2d(inputs, out, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(out))
            inputs = out
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != self.out_channels:
            shortcut = nn.Conv2d(channels, self.out_channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(self.out_channels))

    def forward(self, x: Tensor | Forked) -> Tensor | Forked:
        y, residual = x if isinstance(x, tuple) else (x, x)
        for i in range(1, self.depth):
            y = activate(getattr(self, f"bn{i}"), getattr(self, f"conv{i}")(y))
        if self.downsample is not None:
            residual = self.downsample(residual)
        i = self.depth
        return activate(getattr(self, f"bn{i}"), getattr(self, f"conv{i}")(y), residual)


class _OtherEncoder(nn.Module):
    """A timm model without its classifier, or a module of the user's."""

    def __init__(self, model: nn.Module, out_features: int):
        super().__init__()
        self.model, self.out_features = model, out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)
