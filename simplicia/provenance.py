"""Provenance of results: versions, device, date and commit."""

import datetime
import os
import platform
import subprocess
from pathlib import Path

import torch

from simplicia.version import __version__


def versions(device: torch.device) -> dict[str, str]:
    """Versions, device and date, for a result."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type} ({platform.machine()})"
    )
    return {
        "simplicia": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def commit() -> str:
    """The commit of the package's repository, or the environment variable SIMPLICIA_COMMIT, or "unknown".

    "-dirty" means that the package has uncommitted changes; results and docs do not count.
    """
    if commit := os.environ.get("SIMPLICIA_COMMIT"):
        return commit
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # fails if another repository contains us
        name = _git("rev-parse", "--short", "HEAD")
        return f"{name}-dirty" if _git("status", "--porcelain", "--", ".") else name
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*arguments: str) -> str:
    """The output of git in the package's folder."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
