"""Errors of the Hugging Face hub, as one sentence."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from simplicia.errors import UserError


@contextmanager
def hub_errors(action: str, name: str, instead: str) -> Iterator[None]:
    """Turn errors of the network, the hub and missing tokens into a UserError that names an alternative."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        libraries = ("httpx", "httpcore", "requests", "urllib3", "huggingface_hub")  # or httpx2
        if not (isinstance(error, OSError | ValueError) or type(error).__module__.startswith(libraries)):
            raise
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        why = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0][:200]
        raise UserError(f"{name} cannot be {action} the hub{offline}: {why}; {instead}") from error
