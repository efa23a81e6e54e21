"""What a result needs to be believed: versions, device, date and commit."""

import datetime
import os
import platform
import subprocess
from pathlib import Path

import torch

from simplicia.version import __version__


def versions(device: torch.device) -> dict[str, str]:
    """What a result needs to be believed: versions, device and date."""
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
    """The commit the code is at, if it is in a repository; SIMPLICIA_COMMIT says it for a bare copy.

    "-dirty" says that the package itself was changed since, not only results or pages beside it.
    """
    if told := os.environ.get("SIMPLICIA_COMMIT"):
        return told
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # installed within someone else's repository
        name = _git("rev-parse", "--short", "HEAD")
        return f"{name}-dirty" if _git("status", "--porcelain", "--", ".") else name
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*words: str) -> str:
    """What git says in the package's folder."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
