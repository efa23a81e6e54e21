"""The named recipes: a table that reads like the paper's.

``<data set>-<method>[-sem]`` for cifar100, cifar10 and shapes, and ``<method>[-sem]`` for your own images,
which determine image size, encoder, stem and batch size. ``-sem8`` is SEM with eight diagonal blocks. BYOL
also has a recipe for every other bottleneck: ``-embed``, ``-gumbel``, ``-vq``. The numbers are those of the
paper's experiments (ResNet-18, batch 256, 1000 epochs); a method's constants are the defaults of its
options. For ImageNet there are BYOL and MoCo, without and with SEM, on ResNet-50 and on ResNets of two and
four times its width (``-x2``, ``-x4``). A method that is not in the table has the default settings and those
it recommends.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from simplicia import bottlenecks, methods
from simplicia.errors import unknown
from simplicia.settings import with_changes
from simplicia.train.recipe import Recipe, read_yaml

# fmt: off
#            optimiser lr    weight decay  brightness, contrast, saturation, hue    solarise    tau, tau'
TABLE: dict[str, tuple[str, float, float, tuple[float, ...], tuple[float, float], tuple[float, float]]] = {
    "simclr": ("lars", 0.4, 1e-5, (0.8, 0.8, 0.8, 0.2), (0.0, 0.0), (0.17, 0.78)),
    "moco":   ("sgd",  0.3, 1e-4, (0.4, 0.4, 0.4, 0.1), (0.0, 0.0), (0.04, 0.01)),
    "byol":   ("lars", 1.0, 1e-5, (0.4, 0.4, 0.2, 0.1), (0.0, 0.2), (1.0, 1.0)),
    "barlow": ("lars", 0.3, 1e-4, (0.4, 0.4, 0.2, 0.1), (0.0, 0.2), (1.0, 0.99)),
    "swav":   ("lars", 0.6, 1e-6, (0.8, 0.8, 0.8, 0.2), (0.0, 0.0), (0.85, 1.5)),
    "dino":   ("lars", 0.3, 1e-6, (0.4, 0.4, 0.2, 0.1), (0.0, 0.2), (1.0, 1.0)),
    "vicreg": ("lars", 0.3, 1e-4, (0.4, 0.4, 0.2, 0.1), (0.1, 0.1), (1.0, 1.0)),
}
# fmt: on
# what else a method's row says
MORE: dict[str, dict[str, Any]] = {
    "moco": {"optim.exclude_1d": False},
    "swav": {"optim.exclude_1d": False, "optim.min_lr": 6e-4},
    "vicreg": {"views.crop_scale": (0.2, 1.0)},
}
# what comes after the method's name
TAILS: dict[str, dict[str, Any]] = {
    "": {"bottleneck": "none"},
    "-sem": {"bottleneck": "sem"},
    "-sem8": {"bottleneck": "sem", "sem.blocks": 8},
    "-embed": {"bottleneck": "embed"},
    "-gumbel": {"bottleneck": "gumbel", "sem.temperature": 2.0},
    # commitments were chosen on held-out training images (results/shapes/vq-weight.json)
    "-vq": {"bottleneck": "vq", "sem.simplices": 512, "sem.vertices": 128, "vq.commitment": 0.002},
    "-vq-shared": {
        "bottleneck": "vq-shared",
        "sem.simplices": 512,
        "sem.vertices": 128,
        "vq.dimensions": 16,
        "vq.commitment": 0.01,
    },
}
# the paper's ImageNet, as far as it suits other data
IMAGENET: dict[str, dict[str, Any]] = {
    "": {"encoder": "resnet50", "optim.lr": 0.4, "optim.weight_decay": 1e-6, "optim.eta": 0.001},
    "-sem": {"sem.vertices": 21, "sem.temperature": 0.16, "sem.second_temperature": 0.04},
}
# what a data set changes
DATA: dict[str, dict[str, Any]] = {
    "cifar100": {"data": "cifar100", "log_every": 195},  # an epoch
    "cifar10": {"data": "cifar10", "log_every": 195},
    "imagenet": {
        "data": "imagenet",
        "image_size": 224,
        "decode_size": 256,  # the paper tests the centre crop
        "stem": "imagenet",
        "epochs": 200,
        "batch_size": 4096,  # as its code; its text has 256
        "process_batch_size": 256,
        "views.blur": (1.0, 0.1),
        **IMAGENET[""],
        **IMAGENET["-sem"],
    },
    "shapes": {
        "data": "shapes",
        "encoder": "tiny",
        "epochs": 6,
        "batch_size": 64,
        "sem.simplices": 256,
        "optim": {"name": "sgd", "weight_decay": 1e-4, "warmup_epochs": 1},
        "views": {"brightness": 0.6, "contrast": 0.6, "saturation": 0.8, "hue": 0.5, "jitter_prob": 0.9},
        "views.crop_scale": (0.4, 1.0),
        "log_every": 20,
    },
    "own": {
        "data": "auto",
        "image_size": 0,
        "encoder": "auto",
        "stem": "auto",
        "epochs": 100,
        "batch_size": 0,
        "sem.simplices": 0,
    },
}
# ImageNet with encoders of two and four times the width; fewer images fit in a GPU
DATA |= {
    f"imagenet-x{width}": {
        **DATA["imagenet"],
        "encoder": f"resnet50x{width}",
        "process_batch_size": 256 // width,
    }
    for width in (2, 4)
}
# what MoCo changes on ImageNet: the library's launch script that the paper followed
IMAGENET_MOCO: dict[str, Any] = {
    "batch_size": 256,
    "optim.lr": 0.3,
    "optim.weight_decay": 3e-5,
    "views": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1},
    "views.solarise": (0.0, 0.2),
    "options": {"queue": 65536, "temperature": 0.1},
}
# codebooks that suit the tiny encoder and a short run
SMALL_VQ = {"sem.simplices": 256, "sem.vertices": 32, "vq.dimensions": 4}
# heads and queues that suit the tiny encoder and a short run
SMALL: dict[str, dict[str, Any]] = {
    "simclr": {"hidden": 512, "out": 128},
    "moco": {"hidden": 512, "queue": 2048},
    "byol": {"hidden": 512, "out": 128, "momentum": 0.98},
    "barlow": {"hidden": 512, "out": 512},
    "swav": {"hidden": 512, "prototypes": 256, "queue": 1024, "queue_start": 5, "frozen_epochs": 1},
    "dino": {"hidden": 512, "out": 128, "prototypes": 512, "momentum": 0.98, "warmup_epochs": 5},
    "vicreg": {"hidden": 512, "out": 512},
}


def names() -> list[str]:
    """All recipes by name."""
    return list(_parts())


def get(name: str) -> Recipe:
    """The recipe of that name, or in the YAML file of that path."""
    parts = _parts()
    if name not in parts and name.endswith((".yaml", ".yml")):
        recipe = read_yaml(Path(name))
        return dataclasses.replace(recipe, name=Path(name).stem) if recipe.name == "custom" else recipe
    if name not in parts:
        raise unknown("recipe", name, parts, "simplicia recipes")
    data, method, tail = parts[name]
    changes: dict[str, Any] = {
        "name": name,
        "method": method,
        **_row(method),
        **methods.recommended(method),
        **DATA[data],
        **MORE.get(method, {}),
        **_tails()[tail],
    }
    if method == "moco" and data.startswith("imagenet"):
        changes |= IMAGENET_MOCO
    if data == "shapes":
        changes |= {"options": SMALL.get(method, {})} | (SMALL_VQ if "-vq" in tail else {})
        changes["optim.lr"] = 0.05 if method in ("barlow", "vicreg") else 0.5  # their losses are sums
    return with_changes(Recipe(), changes)


def without_effect(recipe: Recipe, names: Iterable[str]) -> str | None:
    """A sentence about the first of the settings that belongs to a bottleneck the recipe does not have."""
    kind = recipe.bottleneck
    if kind not in bottlenecks.names():
        return None
    used = {*bottlenecks.options(kind)}
    used |= {"second_temperature"} if "temperature" in used else set()
    used |= {"centred"} if kind == "sem" else set()
    for path in names:
        section, _, name = path.partition(".")
        is_known = section in ("sem", "vq") and hasattr(getattr(recipe, section), name)
        if not is_known or name in used:
            continue
        has = f"bottleneck {kind!r}" if used else f"no {section.upper()} (its bottleneck is {kind!r})"
        other = f"{recipe.name.removesuffix(f'-{kind}')}-{section}"
        example = f", such as {other}" if other in _parts() else ""
        return (
            f"--{path.replace('_', '-')} does nothing: recipe {recipe.name!r} has {has}; "
            f"leave it out, or give a recipe with {section.upper()}{example}"
        )
    return None


def _parts() -> dict[str, tuple[str, str, str]]:
    """Data set, method and tail of every recipe."""
    parts = {}
    for data in ("cifar100", "cifar10", "shapes", "own"):
        for method in [*TABLE, *(name for name in methods.names() if name not in TABLE)]:
            for tail in _tails() if method == "byol" else ("", "-sem", "-sem8"):
                head = "" if data == "own" else f"{data}-"
                parts[f"{head}{method}{tail}"] = data, method, tail
    for width in ("", "-x2", "-x4"):
        for method in ("byol", "moco"):
            for tail in ("", "-sem"):
                parts[f"imagenet-{method}{tail}{width}"] = f"imagenet{width}", method, tail
    return parts


def _tails() -> dict[str, dict[str, Any]]:
    """Endings of recipe names; a bottleneck without a row of its own has its default options."""
    others = {f"-{name}": {"bottleneck": name} for name in bottlenecks.names() if name != "none"}
    return TAILS | {tail: changes for tail, changes in others.items() if tail not in TAILS}


def _row(method: str) -> dict[str, Any]:
    """The settings in a method's row of the table."""
    if method not in TABLE:
        return {}
    optimiser, lr, decay, jitter, solarise, (tau, second) = TABLE[method]
    return {
        "optim": {"name": optimiser, "lr": lr, "weight_decay": decay},
        "views": dict(zip(("brightness", "contrast", "saturation", "hue"), jitter, strict=True)),
        "views.solarise": solarise,
        "sem": {"temperature": tau, "second_temperature": None if second == tau else second},
    }
