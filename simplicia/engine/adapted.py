"""Replacing a module's layers by faster ones that share their parameters, buffers and names."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn


class Adapted(nn.Module):
    """Base of layers that replace another one.

    Built from the original as a shallow copy: the same settings and the very same parameters, buffers and
    children, so an optimiser that holds them stays valid.
    """

    def __init__(self, original: nn.Module):
        for name, value in vars(original).items():
            vars(self)[name] = copy.copy(value) if isinstance(value, dict | set) else value


def replace_modules(module: nn.Module, replacements: Mapping[type, Callable[[Any], nn.Module]]) -> None:
    """Replace all submodules of exactly these types, in place, under the same names.

    A replacement copies its original's table of children: replace inner modules before outer ones.
    """
    replaced: dict[int, nn.Module] = {}  # by the original's id: a shared module stays shared
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if type(child) in replacements:
                if id(child) not in replaced:
                    replaced[id(child)] = replacements[type(child)](child)
                setattr(parent, name, replaced[id(child)])
