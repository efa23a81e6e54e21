"""Checkpoints: safetensors and JSON in ``checkpoint/step-…/``, complete or not there at all.

A checkpoint is renamed from a temporary name when it is complete, so a process killed at any moment leaves
the last good ones. Tensors are copied at once and written by a thread while training goes on.
"""

import hashlib
import json
import math
import os
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simplicia.errors import UserError, reason
from simplicia.files import read_object, sha256, write_file, write_text
from simplicia.tensors import to_bytes

KEEP = 2
TENSORS, STATE = "tensors.safetensors", "state.json"
OF_A_MODEL = "total_steps", "mean", "std", "seconds", "loss"  # what the state of a trained model has
FROZEN = "encoder.safetensors"  # in the folder of a run whose encoder does not learn


def save(
    folder: Path, step: int, tensors: Mapping[str, Tensor], state: dict[str, Any], keep: int = KEEP
) -> None:
    """Write a checkpoint and drop all but the newest ``keep``. Raises OSError; nothing half-written stays."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    final = folder / f"step-{step:09d}"
    temporary = folder / f".writing-{step:09d}-{secrets.token_hex(8)}"
    try:
        temporary.mkdir(parents=True)
        save_file({k: v.contiguous() for k, v in tensors.items()}, temporary / TENSORS)
        written = {"bytes": (temporary / TENSORS).stat().st_size, "sha256": sha256(temporary / TENSORS)}
        state = {**state, "step": step, **written}
        (temporary / STATE).write_text(json.dumps(state, indent=1))
        shutil.copymode(temporary / STATE, temporary / TENSORS)  # safetensors lets nobody else read its files
        for name in (TENSORS, STATE):
            _flush(temporary / name, os.O_RDWR)
        os.rename(temporary, final)
        with suppress(PermissionError):  # Windows opens no folders
            _flush(folder, os.O_RDONLY)
    except (OSError, SafetensorError) as error:
        raise OSError(f"{error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in _complete(folder)[:-keep]:
        _remove(old)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left in a ``checkpoint`` folder; the run must be locked."""
    for leftover in folder.glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def discard(folder: Path) -> None:
    """Remove a run's checkpoints, so that it is trained again."""
    for checkpoint in _complete(folder):
        _remove(checkpoint)


def drop(folder: Path) -> None:
    """Remove the tensors of a run's checkpoints; the state of the newest stays, and says so."""
    *old, newest = _complete(folder)
    for path in old:
        _remove(path)
    state = json.loads((newest / STATE).read_text())
    write_text(newest / STATE, json.dumps({**state, "dropped": True}, indent=1))
    (newest / TENSORS).unlink(missing_ok=True)


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run's ``checkpoint`` folder."""
    complete = _complete(folder)
    return complete[-1] if complete else None


def state_of(run: Path) -> dict[str, Any]:
    """The state of a run's newest checkpoint; nothing of one that has none, or a damaged one."""
    newest = latest(run / "checkpoint")
    return {} if newest is None else read_object(newest / STATE)


def read(checkpoint: Path, needed: tuple[str, ...] = ()) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and the state of a checkpoint; a damaged one is a UserError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = json.loads((checkpoint / STATE).read_text())
        if isinstance(state, dict) and state.get("dropped"):
            raise ValueError("its weights were dropped")
        size = (checkpoint / TENSORS).stat().st_size
        if not isinstance(state, dict) or state.get("bytes") != size:
            raise ValueError(f"{TENSORS} has {size} bytes, not what {STATE} says")
        check_state(state, needed)
        if "sha256" in state and state["sha256"] != sha256(checkpoint / TENSORS):  # 0.1 stored none
            raise ValueError(f"{TENSORS} is not what was written: its SHA-256 differs from that in {STATE}")
        return load_file(checkpoint / TENSORS), state
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        others = [c.name for c in _complete(checkpoint.parent) if c != checkpoint]
        hint = f"remove it to go back to {others[-1]}" if others else "there is no other to go back to"
        raise UserError(f"checkpoint {checkpoint} is damaged ({error}); {hint}") from error


def load_into(module: torch.nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Copy tensors into a module, strictly: a key or a shape that does not match is a UserError.

    Copies into the tensors that are there, so that their memory format stays.
    """
    own = module.state_dict()
    for what, keys in (
        ("lacks", own.keys() - tensors.keys()),
        ("has the unknown", tensors.keys() - own.keys()),
    ):
        if keys:
            some = repr(min(keys)) + (f" and {len(keys) - 1} more" if len(keys) > 1 else "")
            raise UserError(
                f"{source} does not fit this model: it {what} {some}; was it made by another recipe?"
            )
    for key, value in own.items():
        if value.shape != tensors[key].shape or value.dtype != tensors[key].dtype:
            given, wanted = (
                f"{tuple(t.shape)} {t.dtype}".replace("torch.", "") for t in (tensors[key], value)
            )
            raise UserError(f"{source} does not fit this model: {key} is {given}, not {wanted}")
    with torch.no_grad():
        for key, value in own.items():
            value.copy_(tensors[key])


def newest_of(path: str | Path) -> Path:
    """The newest checkpoint of a run; a UserError if a folder is not a run, or has none yet."""
    path = Path(path)
    if not (path / "recipe.yaml").is_file():
        raise UserError(
            f"{path} is not a run: it has no recipe.yaml; give the folder that pretrain wrote (--out)"
        )
    newest = latest(path / "checkpoint")
    if newest is None:
        raise UserError(f"{path} has no checkpoint: it must train for a while first, or it diverged")
    return newest


def method_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint that are the method's own, by their names in it."""
    return {k.removeprefix("method."): v for k, v in tensors.items() if k.startswith("method.")}


def read_model(checkpoint: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The method's own tensors, with those of a frozen encoder, which a run stores once; and the state."""
    tensors, state = read(checkpoint, OF_A_MODEL)
    own = method_tensors(tensors)
    encoder = _frozen_encoder(checkpoint, state)
    networks = {key.partition(".")[0] for key in own if key.startswith(("online.", "target."))}
    return own | {
        f"{name}.encoder.{key}": value for name in networks for key, value in encoder.items()
    }, state


def store_frozen_encoder(path: Path, encoder: torch.nn.Module) -> str:
    """Write a frozen encoder into a run directory, once; returns its SHA-256."""
    content = to_bytes(encoder.state_dict())
    if not (path / FROZEN).is_file():
        write_file(path / FROZEN, content, "the encoder")
    return hashlib.sha256(content).hexdigest()


def _frozen_encoder(checkpoint: Path, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of the run's frozen encoder; none if it has no such encoder."""
    from safetensors.torch import load_file

    if "frozen_encoder" not in state:
        return {}
    file = checkpoint.parent.parent / FROZEN
    if not file.is_file() or sha256(file) != state["frozen_encoder"]:
        raise UserError(f"{file} is missing or damaged: its SHA-256 differs from that in {STATE}")
    return load_file(file)


@torch.no_grad()
def initialise_from(method: torch.nn.Module, path: str | Path) -> tuple[int, int]:
    """Load the weights and statistics of a run into a method, where names and shapes agree.

    The encoder must match completely, or it is a UserError. Queues start empty; a target network that the run
    lacks starts as a copy of the online one. Returns how many tensors were loaded, of how many.
    """
    newest = newest_of(path)
    there, _ = read_model(newest)
    own = {k: v for k, v in method.state_dict().items() if "." in k and not k.startswith("queue.")}
    taken = 0
    for key, value in own.items():
        loaded = there.get(key, there.get(key.replace("target.", "online.", 1)))
        if loaded is not None and loaded.shape == value.shape:
            value.copy_(loaded)
            taken += 1
        elif key.startswith("online.encoder."):
            why = "lacks it" if loaded is None else f"has it as {tuple(loaded.shape)}"
            raise UserError(
                f"init is {str(path)!r}, whose encoder is another: {key} is {tuple(value.shape)} here, and "
                f"the run {why}; give the encoder, stem and stem_padding that it was trained with"
            )
    return taken, len(own)


class Writer:
    """Saves checkpoints in the background, one at a time."""

    def __init__(self, folder: Path, keep: int = KEEP):
        self.folder, self.keep = folder, keep
        self.thread: threading.Thread | None = None
        self.error: Exception | None = None
        self.slowest = 0.0  # seconds that one took, copied and written

    def save(self, step: int, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:
        """Copy the tensors to host memory and write them while training goes on."""
        self.wait()
        start = time.monotonic()
        copies = {key: value.detach().to("cpu", copy=True) for key, value in tensors.items()}
        self.thread = threading.Thread(target=self._write, args=(step, copies, state, start))
        self.thread.start()

    def wait(self) -> None:
        """Wait for the last checkpoint; a disk that is full or gone is a UserError here."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            last = latest(self.folder)
            kept = f"the last good one is {last.name}" if last else "there is none yet"
            raise UserError(
                f"no checkpoint could be written to {self.folder}: {reason(error)}; {kept}"
            ) from error

    def _write(self, step: int, tensors: Mapping[str, Tensor], state: dict[str, Any], start: float) -> None:
        try:
            save(self.folder, step, tensors, state, self.keep)
        except Exception as error:  # wait raises it in the thread that trains
            self.error = error
        self.slowest = max(self.slowest, time.monotonic() - start)


def check_state(state: dict[str, Any], needed: tuple[str, ...] = ()) -> None:
    """Raise a ValueError if what a run goes on with makes no sense, or lacks what is needed."""

    def is_number(value: Any, least: float = -1e15, most: float = 1e15) -> bool:
        return isinstance(value, int | float) and least <= value <= most

    def is_triple(value: Any, least: float) -> bool:
        return isinstance(value, list) and len(value) == 3 and all(is_number(x, least) for x in value)

    if missing := [key for key in needed if key not in state]:
        raise ValueError(f"{STATE} lacks {missing[0]!r}")
    step, total = state.get("step"), state.get("total_steps", math.inf)
    if not isinstance(step, int) or not isinstance(total, int | float) or not 0 <= step <= total:
        raise ValueError(f"{STATE} says step {step!r} of {total!r}")
    history = state.get("trained_by", [])
    valid = {
        "seconds": is_number(state.get("seconds", 0)),
        "loss": is_number(state.get("loss", 0), -1e300, 1e300),
        "mean": is_triple(state.get("mean", [0, 0, 0]), -1e15),
        "std": is_triple(state.get("std", [1, 1, 1]), 1e-6),
        "trained_by": isinstance(history, list) and all(isinstance(entry, dict) for entry in history),
    }
    for key, is_valid in valid.items():
        if not is_valid:
            raise ValueError(f"{STATE} says {key} {state[key]!r}")


def _complete(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("step-*") if p.is_dir())


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint; a process killed meanwhile leaves all of it or a leftover."""
    with suppress(OSError):
        hidden = checkpoint.with_name(f".writing-{checkpoint.name}-{secrets.token_hex(8)}")
        checkpoint.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _flush(path: Path, how: int) -> None:
    descriptor = os.open(path, how)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
