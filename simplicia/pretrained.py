"""Models that travel: a folder, or a repository on the hub, with all that encoding images needs.

``model.safetensors``       the encoder, named as in torchvision or timm
``config.json``             for ``timm.create_model("local-dir:folder", pretrained=True)``
``bottleneck.safetensors``  the embedder and its norm; there is no projector
``recipe.yaml``             the recipe, without the folders of the machine that trained it
``simplicia.json``          normalisation, classes, and the state of the training
``README.md``               the model card, with the run's results

Folders may come from strangers: they hold no pickle and no code, and every size is checked before memory is
taken for it.
"""

import dataclasses
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from simplicia import encoders
from simplicia.devices import seeded
from simplicia.errors import UserError, build_errors, printable, reason
from simplicia.files import temporary_name, write_errors
from simplicia.hub import hub_errors
from simplicia.methods import Method
from simplicia.progress import say
from simplicia.result import read_results
from simplicia.tensors import read_header, to_bytes
from simplicia.train import checkpoint
from simplicia.train.recipe import Recipe, read_yaml, write_yaml
from simplicia.version import __version__

RECIPE, STATE, CARD, CONFIG = "recipe.yaml", "simplicia.json", "README.md", "config.json"
ENCODER, BOTTLENECK = "model.safetensors", "bottleneck.safetensors"
NEEDED = RECIPE, STATE, ENCODER, BOTTLENECK
LARGEST_STATE = 2**24  # characters of simplicia.json
KEPT = ("step", "total_steps", "seconds", "loss", "mean", "std", "classes", "images", "id", "trained_by")
HUB_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


def save_pretrained(run: Any, folder: str | Path, network: str = "online") -> Path:
    """Write the run as a model for others into a new folder; ``simplicia.from_pretrained`` loads it.

    >>> run.save_pretrained("shapes-model").name
    'shapes-model'
    """
    folder = Path(folder)
    if run.recipe.encoder == encoders.GIVEN:
        raise UserError(
            f"{run.path} has an encoder from Python, which others cannot build; run.export writes a program "
            "of it, .pt2 or .onnx"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give a new folder for the model")
    temporary = temporary_name(folder)
    with write_errors("the model", folder):
        try:
            temporary.mkdir(parents=True)
            _write(run, temporary, network)
            if folder.is_dir():  # which is empty
                folder.rmdir()
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def push_to_hub(run: Any, name: str, network: str = "online", private: bool = False) -> str:
    """Upload the model to the Hugging Face hub as ``user/name``; returns its address.

    >>> run.push_to_hub("me/shapes")  # doctest: +SKIP
    'https://huggingface.co/me/shapes'
    >>> run.push_to_hub("shapes")
    Traceback (most recent call last):
    simplicia.errors.UserError: 'shapes' is not a name on the hub; give user/name
    """
    import huggingface_hub

    if not HUB_NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a name on the hub; give user/name")
    with (
        tempfile.TemporaryDirectory() as parent,
        hub_errors("uploaded to", name, "a local folder works offline"),
    ):
        folder = save_pretrained(run, Path(parent) / "model", network)
        address = str(huggingface_hub.create_repo(name, private=private, exist_ok=True))
        huggingface_hub.upload_folder(repo_id=name, folder_path=folder)
    return address


def find(folder_or_name: str | Path) -> Path:
    """The folder of a model: the given one, or that of a model on the hub, which is fetched once."""
    folder, name = Path(folder_or_name), str(folder_or_name)
    if folder.is_dir() or not HUB_NAME.fullmatch(name):
        return folder
    import huggingface_hub

    with hub_errors("fetched from", name, "a local folder works offline"):
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=[*NEEDED, CARD, CONFIG]))


def is_model(folder: Path) -> bool:
    """Whether ``save_pretrained`` wrote the folder, rather than ``pretrain``."""
    return (folder / STATE).is_file()


def read(folder: Path) -> tuple[Recipe, Method, dict[str, Any]]:
    """The recipe, the networks and the state in a folder, strictly; networks have no projector."""
    from safetensors.torch import load_file

    if missing := [name for name in NEEDED if not (folder / name).is_file()]:
        raise UserError(
            f"{folder} is not a pretrained model: it has no {missing[0]}; give a folder that "
            "save_pretrained wrote, or the name of a model on the hub (user/name)"
        )
    recipe, state = read_yaml(folder / RECIPE), _read_state(folder / STATE)
    model = f"the model in {folder}"
    with build_errors(model), torch.device("meta"):  # takes no memory, whatever the recipe says
        for part, file in zip(recipe.trunk(), (ENCODER, BOTTLENECK), strict=True):
            _check_tensors(_core(part), folder / file)
    with build_errors(model), seeded(0, torch.device("cpu")):
        encoder, bottleneck = recipe.trunk()
    for part, file in ((encoder, ENCODER), (bottleneck, BOTTLENECK)):
        checkpoint.load_into(_core(part), load_file(folder / file), folder / file)
    return recipe, Method(encoder, bottleneck, nn.Identity()), state


def timm_config(recipe: Recipe, state: dict[str, Any], encoder: nn.Module) -> dict[str, Any] | None:
    """The config.json with which timm builds the encoder; None if timm has no such model."""
    import timm

    name = recipe.encoder.removeprefix("timm/")
    is_ours = recipe.encoder in encoders.names()
    if not timm.is_model(name.split(".")[0]) or (is_ours and recipe.stem != "imagenet"):
        return None
    with torch.device("meta"):
        built, options = encoders.create_sized(f"timm/{name}", recipe.image_size)
    model: Any = _core(built)
    shapes = {key: value.shape for key, value in _core(encoder).state_dict().items()}
    if shapes != {key: value.shape for key, value in model.state_dict().items()}:
        return None
    size, base = recipe.image_size, model.pretrained_cfg
    kept = ("interpolation", "fixed_input_size", "pool_size", "first_conv", "classifier", "crop_mode")
    about = {key: base[key] for key in kept if base.get(key) is not None}
    about |= {"input_size": [3, size, size], "mean": list(state["mean"]), "std": list(state["std"])}
    about |= {"num_classes": 0, "interpolation": "bicubic"}
    about["crop_pct"] = 7 / 8 if recipe.actual_decode_size > size else 1.0
    config = {"architecture": name.split(".")[0], "num_classes": 0, "num_features": int(model.num_features)}
    return {**config, "model_args": options, "pretrained_cfg": about}


def _core(module: nn.Module) -> nn.Module:
    """A timm model without our wrapper, whose name would precede those of its weights."""
    return getattr(module, "model", module)


def _write(run: Any, folder: Path, network: str) -> None:
    net, recipe = run.network(network), run.recipe
    about = {name: getattr(recipe, name) for name in ("encoder", "stem", "image_size")}
    about |= {name: list(run.state[name]) for name in ("mean", "std")}  # as in exported weights
    for part, file in ((net.encoder, ENCODER), (net.bottleneck, BOTTLENECK)):
        (folder / file).write_bytes(to_bytes(_core(part).state_dict(), about))
    write_yaml(_without_folders(recipe), folder / RECIPE)
    state = {key: run.state[key] for key in KEPT if key in run.state}
    state |= {"simplicia": __version__, "network": network}
    (folder / STATE).write_text(json.dumps(state, indent=1))
    config = timm_config(recipe, run.state, net.encoder)
    if config is not None:
        (folder / CONFIG).write_text(json.dumps(config, indent=1))
    (folder / CARD).write_text(_card(run, network, config), encoding="utf-8", errors="replace")


def _without_folders(recipe: Recipe) -> Recipe:
    """The recipe without paths, which name people and machines."""
    changes = {name: getattr(recipe, name) for name in ("data", "init", "encoder_weights")}
    names: Any = {key: Path(value).name or value for key, value in changes.items() if value}
    return dataclasses.replace(recipe, data_dir=None, **names)


def _card(run: Any, network: str, config: dict[str, Any] | None) -> str:
    recipe, state = _without_folders(run.recipe), run.state
    rows = ["| protocol | layer | temperature | images | accuracy, % |", "|---|---|---|---|---|"]
    for result in read_results(run.path, say):
        if result.accuracy is None or result.network != network:
            continue
        error = "" if result.standard_error is None else f" ± {result.standard_error:.1f}"
        when = "online " if result.online else ""
        tau = "-" if result.temperature is None else f"{result.temperature:g}"
        cells = f"{when}{result.protocol}", result.layer or "-", tau, result.dataset
        rows.append(f"| {' | '.join(map(_plain, cells))} | {result.accuracy:.1f}{error} |")
    settings = {
        "method": recipe.method,
        "encoder": f"{recipe.encoder}, images of {recipe.image_size} x {recipe.image_size}",
        "bottleneck": recipe.bottleneck,
        "simplices, vertices": f"{recipe.sem.simplices}, {recipe.sem.vertices}",
        "trained on": f"{recipe.data}, {state.get('images', '?')} images, no labels",
        "steps": f"{run.step} of {state['total_steps']} ({recipe.epochs} epochs)",
        "network": network,
    }
    if recipe.bottleneck == "none":
        del settings["simplices, vertices"]
    in_timm = (
        f'encoder = timm.create_model("local-dir:folder", pretrained=True)  # {config["architecture"]}'
        if config is not None
        else f"# timm has no counterpart of this encoder ({_plain(recipe.encoder)}, stem {recipe.stem})"
    )
    lines = [
        "---",
        "library_name: simplicia",
        "pipeline_tag: image-feature-extraction",
        "tags: [simplicia, self-supervised-learning, simplicial-embeddings]",
        "---",
        f"# {_plain(recipe.name)}",
        "",
        "An image encoder pre-trained without labels by Simplicia, with simplicial embeddings (https://arxiv.org/abs/2204.00616).",
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {_plain(value)} |" for key, value in settings.items()),
        "",
        "## Results",
        "",
        *(rows if len(rows) > 2 else ["None were measured before the model was saved."]),
        "",
        "## Use",
        "",
        "```python",
        "import simplicia",
        "",
        'model = simplicia.from_pretrained("folder")  # or the name of this model on the hub',
        'model.encode(["photo.jpg"])  # layers: ' + ", ".join(run.layers()),
        "```",
        "",
        "```python",
        "import timm",
        "",
        in_timm,
        "```",
        "",
        "`recipe.yaml` has every setting, `simplicia.json` the normalisation and the classes.",
    ]
    return "\n".join(lines) + "\n"


def _plain(text: object) -> str:
    """A name as text in Markdown, whatever it holds."""
    return re.sub(r"([\\`*_\[\]<>|#&!])", r"\\\1", printable(text))


def _read_state(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_STATE + 1)
        if len(text) > LARGEST_STATE:
            raise ValueError(f"it has more than {LARGEST_STATE} characters")
        state = json.loads(text)
        if not isinstance(state, dict):
            raise ValueError(f"it is a {type(state).__name__}, not an object")
        checkpoint.check_state(state, checkpoint.OF_A_MODEL)
        classes = state.get("classes", [])
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise ValueError("its classes are not a list of names")
        return state
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error


def _check_tensors(module: nn.Module, path: Path) -> None:
    """A UserError unless the file has exactly the module's tensors, by its header alone."""
    wanted = {key: list(value.shape) for key, value in module.state_dict().items()}
    _, found = read_header(path)
    for key in sorted(wanted.keys() | found.keys()):
        if wanted.get(key) != found.get(key):
            given, right = (f"of shape {s[key]}" if key in s else "absent" for s in (found, wanted))
            raise UserError(
                f"{path} does not fit its recipe: {printable(key)[:100]} is {given}, and should be {right}"
            )
