"""Public names that are imported when they are first asked for, so that importing a package costs next to nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package: `home` maps each public name to its module.

    No module may be called as a public name is: once imported, it would stand in the name's place.
    """

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find


def names_of(package: str, home: Mapping[str, str]) -> Callable[[], list[str]]:
    """The `__dir__` of a package: its public names, imported or not, its modules, and what Python puts there."""

    def names() -> list[str]:
        shown = {
            name
            for name, value in vars(sys.modules[package]).items()
            if name.startswith("__") or getattr(value, "__name__", "") == f"{package}.{name}"
        }
        return sorted(shown | home.keys())

    return names
