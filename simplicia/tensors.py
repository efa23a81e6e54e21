"""Tensors in safetensors files, with JSON about them in the header."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from simplicia.errors import UserError, reason

KEY = "simplicia"  # of the JSON in a header


def to_bytes(tensors: Mapping[str, Tensor], about: Any = None, key: str = KEY) -> bytes:
    """The content of a file with these tensors, and JSON about them if it is given."""
    from safetensors.torch import save

    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return save(copies, None if about is None else {"format": "pt", key: json.dumps(about)})


def read_header(path: Path) -> tuple[Any, dict[str, list[int]]]:
    """What a file says about its tensors (nothing: an empty dictionary), and the shape of each."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118  (no mapping)
            return json.loads((file.metadata() or {}).get(KEY, "{}")), shapes
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read as safetensors: {reason(error)}") from error
