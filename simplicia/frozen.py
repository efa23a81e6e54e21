"""A frozen encoder: its features of a few random views of each image, computed once.

The embedder and the heads then train on features in place of images, which takes minutes on a CPU. Features
are computed in parts of 256 images, each an atomically written file with random numbers of its own, so that a
killed computation goes on where it was and gives the same features. They lie in the folder SIMPLICIA_CACHE,
or in the run's, and are mapped into memory. The encoder's weights are stored once, beside the checkpoints.
"""

import dataclasses
import hashlib
import json
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from simplicia import encoders
from simplicia.data.augmentation import Triple, Views
from simplicia.data.cached_features import Frozen
from simplicia.data.datasets import ImageSet
from simplicia.data.loaders import mix_seed
from simplicia.devices import seeded
from simplicia.errors import UserError, reason
from simplicia.files import atomic_write, chosen_cache, reserve, write_errors, write_text
from simplicia.hub import hub_errors
from simplicia.progress import Progress, say
from simplicia.settings import as_dict
from simplicia.tensors import read_header
from simplicia.train import checkpoint
from simplicia.train.recipe import Recipe, read_yaml
from simplicia.train.run_dir import fingerprint

PRETRAINED = "pretrained"  # encoder_weights: timm's, from the hub
PART = 256  # images in a file of features
AT_ONCE = 32  # images in the encoder at a time
USUAL_SIZE = 224  # of images; weights for larger ones are resampled


def settings(recipe: Recipe, path: Path, overwrite: bool, processes: int) -> Recipe:
    """The recipe of a new run with what the encoder's weights decide: encoder, stem, image size."""
    if recipe.freeze != "none" and processes > 1:
        raise UserError(f"processes is {processes}; a frozen encoder trains in one, and needs no more")
    if not overwrite and checkpoint.latest(path / "checkpoint") is not None:
        return recipe
    if recipe.freeze == "none":
        if recipe.encoder_weights is not None:
            raise UserError(
                "encoder_weights is for a frozen encoder; add --freeze encoder, or begin with a run (--init)"
            )
        return recipe
    if recipe.online_every:
        raise UserError(
            f"online_every is {recipe.online_every}, but with a frozen encoder training sees no images; "
            "leave it out, and use simplicia probe afterwards"
        )
    if recipe.encoder == encoders.GIVEN:
        raise UserError(
            "freeze is 'encoder', but the encoder is a module from Python; give --encoder-weights with a "
            ".safetensors file, or the name of a timm model"
        )
    weights, changes = recipe.encoder_weights, dict[str, Any]()
    about: dict[str, Any] = {}
    if weights not in (None, PRETRAINED):
        about = _about(Path(str(weights)))
    elif weights is None and recipe.init is not None:
        about = vars(read_yaml(Path(recipe.init) / "recipe.yaml"))
    for name, undecided in (("encoder", "auto"), ("stem", "auto"), ("image_size", 0)):
        if getattr(recipe, name) == undecided and name in about:
            changes[name] = about[name]
    encoder = changes.get("encoder", recipe.encoder)
    is_timm = encoder not in (*encoders.names(), "auto")
    if weights is None and recipe.init is None:
        if not is_timm:
            raise UserError(
                f"encoder {encoder!r} has no pretrained weights to freeze; give --encoder-weights with a "
                ".safetensors file, --init with a run, or the name of a timm model"
            )
        changes["encoder_weights"] = PRETRAINED
    if recipe.image_size == 0 and is_timm and "image_size" not in changes:
        changes["image_size"] = min(USUAL_SIZE, max(_timm_cfg(encoder)["input_size"][1:]))
    return dataclasses.replace(recipe, **changes)


def prepare(
    recipe: Recipe, images: ImageSet, path: Path, is_new: bool, device: torch.device, quiet: bool
) -> Frozen:
    """The recipe's frozen encoder with its features of the images, computed as far as they are not cached."""
    encoder, statistics = _encoder(recipe, images, None if is_new else checkpoint.newest_of(path))
    recipe.try_encoder(encoder)
    encoder = encoder.to(device).to(memory_format=torch.channels_last).eval().requires_grad_(False)
    digest = hashlib.sha256(fingerprint(images).encode())
    for value in encoder.state_dict().values():
        digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    names = ("encoder", "image_size", "view_size", "views", "frozen_views", "seed", "keep_aspect")
    chosen = {name: as_dict(recipe)[name] for name in names} | {"statistics": statistics}
    digest.update(json.dumps(chosen, sort_keys=True).encode())
    folder = (chosen_cache() or path / ".features") / f"{digest.hexdigest()[:32]}.features"
    with write_errors("features", folder):
        stored, extraction = _extract(recipe, encoder, images, statistics, folder, device, quiet)
    say([_describe(extraction)], quiet)
    return Frozen(encoder, torch.from_numpy(stored), statistics, extraction)


@torch.no_grad()
def _extract(
    recipe: Recipe,
    encoder: Any,
    images: ImageSet,
    statistics: tuple[Triple, Triple],
    folder: Path,
    device: torch.device,
    quiet: bool,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Fill the folder with ``features.npy`` (images, views, features); returns these and what they took."""
    final, about = folder / "features.npy", folder / "extraction.json"
    shape = (len(images), recipe.frozen_views, encoder.out_features)
    stored = _stored(final, shape)
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # missing or damaged
        result = json.loads(about.read_text())
        if stored is not None and _describe(result):
            return stored, result
    folder.mkdir(parents=True, exist_ok=True)
    views = Views(recipe.views, recipe.actual_view_size, *statistics)
    parts = [folder / f"part-{start:09d}.npy" for start in range(0, len(images), PART)]
    sizes = [min(PART, len(images) - start) for start in range(0, len(images), PART)]
    missing = [i for i, part in enumerate(parts) if _stored(part, (sizes[i], *shape[1:])) is None]
    begin = time.monotonic()
    with closing(
        Progress("computing features", len(images), (len(parts) - len(missing)) * PART, quiet)
    ) as bar:
        for i in missing:
            rows = range(i * PART, i * PART + sizes[i])
            with seeded(mix_seed(recipe.seed, i), device):
                features = _features(views, encoder, images, rows, device, recipe.frozen_views)
            if not features.isfinite().all():
                raise UserError(f"encoder {recipe.encoder!r} gives features that are not finite")
            with atomic_write(parts[i]) as temporary, temporary.open("wb") as file:
                np.save(file, features.numpy())
            bar.update(rows.stop, f"{recipe.frozen_views} views of each image")
    seconds = time.monotonic() - begin
    computed = sum(sizes[i] for i in missing)
    with atomic_write(final) as temporary:
        joined = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
        with temporary.open("r+b") as file:
            reserve(file, temporary.stat().st_size)
        for i, part in enumerate(parts):
            joined[i * PART : (i + 1) * PART] = np.load(part, allow_pickle=False)
        joined.flush()
        del joined
    result = {"images": len(images), "views": recipe.frozen_views, "device": str(device)}
    result |= {"computed": computed, "seconds": seconds}
    result["images_per_s"] = computed / seconds if computed else 0.0
    write_text(about, json.dumps(result))
    for part in parts:
        part.unlink()
    return np.load(final, mmap_mode="c", allow_pickle=False), result


def _stored(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Features in a file, mapped; None if they are missing or damaged."""
    if not path.is_file():
        return None
    try:
        features = np.load(path, mmap_mode="c", allow_pickle=False)
    except OSError:
        raise
    except Exception:  # numpy reads the header as Python, with all of its errors
        return None
    return features if features.shape == shape and features.dtype == np.float32 else None


def _features(
    views: Views, encoder: Any, images: ImageSet, rows: range, device: torch.device, count: int
) -> Tensor:
    """The features (rows, count, features) of random views, on the CPU."""
    batches = []
    for indices in torch.arange(rows.start, rows.stop).split(AT_ONCE):
        pixels = images.images[indices].to(device)
        ratios = None if images.aspect_ratios is None else images.aspect_ratios[indices].to(device)
        seen: list[Tensor] = []
        while len(seen) < count:
            seen += views(pixels, ratios)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            batches.append(torch.stack([encoder(view).float().cpu() for view in seen[:count]], 1))
    return torch.cat(batches)


def _describe(extraction: dict[str, Any]) -> str:
    count, views = extraction["images"], extraction["views"]
    rate = extraction["images_per_s"]
    return (
        f"features of {count:,} images, {views} views of each: {extraction['seconds']:.0f} s on "
        f"{extraction['device']}, {rate:.1f} images/s ({rate * views:.0f} views/s)"
    )


def _encoder(
    recipe: Recipe, images: ImageSet, newest: Path | None
) -> tuple[nn.Module, tuple[Triple, Triple]]:
    """The encoder with its weights, and the normalisation they were trained with."""
    encoder: nn.Module
    if newest is None and recipe.encoder_weights == PRETRAINED:
        encoder, cfg = _from_timm(recipe, {}), _timm_cfg(recipe.encoder)
        return encoder, (tuple(cfg["mean"]), tuple(cfg["std"]))
    if newest is not None or recipe.encoder_weights is None:
        # a run that is resumed has its own copy: the weights may be gone from where they were
        source = newest or checkpoint.newest_of(str(recipe.init))
        model, state = checkpoint.read_model(source)
        prefix = "online.encoder."
        encoder = recipe.trunk()[0]
        own = {k.removeprefix(prefix): v for k, v in model.items() if k.startswith(prefix)}
        checkpoint.load_into(encoder, own, source)
        return encoder, (tuple(state["mean"]), tuple(state["std"]))
    file = Path(recipe.encoder_weights)
    about = _about(file)
    statistics = images.statistics()
    if recipe.encoder in encoders.names():
        from safetensors.torch import load_file

        encoder = recipe.trunk()[0]
        checkpoint.load_into(encoder, load_file(file), file)
    else:
        _check_names(recipe, file)
        encoder = _from_timm(recipe, {"file": str(file), "custom_load": False})
        cfg = _timm_cfg(recipe.encoder)
        statistics = tuple(cfg["mean"]), tuple(cfg["std"])
    if "mean" in about:
        statistics = tuple(about["mean"]), tuple(about["std"])
    return encoder, statistics


def _from_timm(recipe: Recipe, overlay: dict[str, Any]) -> nn.Module:
    """A timm encoder with pretrained weights: timm fetches them, or reads the file that ``overlay`` names."""
    instead = "give --encoder-weights with a .safetensors file"
    options: dict[str, Any] = {"pretrained_cfg_overlay": overlay} if overlay else {}
    with hub_errors("fetched from", f"the weights of {recipe.encoder}", instead):
        try:
            return encoders.create_sized(recipe.encoder, recipe.image_size, pretrained=True, **options)[0]
        except (RuntimeError, AssertionError) as error:
            raise UserError(
                f"encoder {recipe.encoder!r} cannot be built with its weights: {reason(error)}"
            ) from error


def _timm_cfg(name: str) -> dict[str, Any]:
    """What timm knows about the weights of a model."""
    import timm

    encoders.check(name)
    cfg = timm.get_pretrained_cfg(name.removeprefix("timm/"))
    if cfg is None:
        raise UserError(f"timm has no weights of encoder {name!r}; give --encoder-weights with a file")
    return cfg.to_dict()


def _check_names(recipe: Recipe, file: Path) -> None:
    """A UserError unless a file has every tensor of a timm model, and no others but those of its classifier.

    timm itself loads such a file, resampling position embeddings; it would not say what is missing.
    """
    with torch.device("meta"):
        own = {key.removeprefix("model.") for key in recipe.trunk()[0].state_dict()}
    classifier = _timm_cfg(recipe.encoder).get("classifier") or ()
    heads = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    found = {key for key in read_header(file)[1] if not key.startswith(tuple(f"{h}." for h in heads))}
    for what, keys in (("lacks", own - found), ("has the unknown", found - own)):
        if keys:
            raise UserError(f"{file} does not fit encoder {recipe.encoder!r}: it {what} {sorted(keys)[0]!r}")


def _about(file: Path) -> dict[str, Any]:
    """What a file of weights says about itself; empty unless Simplicia wrote it."""
    if file.suffix != ".safetensors" or not file.is_file():
        raise UserError(f"encoder_weights is {str(file)!r}; it must be a .safetensors file, or 'pretrained'")
    about, _ = read_header(file)
    kinds = {"encoder": str, "stem": str, "image_size": int, "mean": list, "std": list}
    known = {
        k: about[k] for k, kind in kinds.items() if isinstance(about, dict) and isinstance(about.get(k), kind)
    }
    if {"mean", "std"} & known.keys():
        try:
            checkpoint.check_state({"step": 0, "mean": known["mean"], "std": known["std"]})
        except (ValueError, KeyError) as error:
            raise UserError(f"{file} says nonsense about its normalisation: {error}") from error
    return known
