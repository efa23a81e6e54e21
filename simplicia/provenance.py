"""Provenance of results: versions, device, date and commit."""

import datetime
import os
import platform
import subprocess
from functools import partial
from pathlib import Path

import torch

from simplicia.version import __version__


def versions(device: torch.device) -> dict[str, str]:
    """Return versions, device and date, for a result."""
    is_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_gpu else f"{device.type} ({platform.machine()})"
    return {
        "simplicia": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def commit() -> str:
    """Return the commit of the package's repository, or the variable SIMPLICIA_COMMIT, or "unknown".

    "-dirty" means that the package has uncommitted changes; results and docs do not count.
    """
    if commit := os.environ.get("SIMPLICIA_COMMIT"):
        return commit
    here = Path(__file__)
    git = partial(subprocess.check_output, cwd=here.parent, stderr=subprocess.DEVNULL, text=True, timeout=10)
    try:
        git(["git", "ls-files", "--error-unmatch", here.name])  # fails if another repository contains us
        name = git(["git", "rev-parse", "--short", "HEAD"]).strip()
        return f"{name}-dirty" if git(["git", "status", "--porcelain", "--", "."]).strip() else name
    except (OSError, subprocess.SubprocessError):
        return "unknown"
