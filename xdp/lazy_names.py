"""Public names that are imported on first use, so that importing a package is cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package; `home` maps each public name to its module.

    No module may have the name of a public name: once imported, it would shadow that name.
    """

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find


def names_of(package: str, home: Mapping[str, str]) -> Callable[[], list[str]]:
    """Return the `__dir__` of a package: its public names, imported or not, its modules, and Python's own names."""

    def names() -> list[str]:
        shown = {
            name
            for name, value in vars(sys.modules[package]).items()
            if name.startswith("__") or getattr(value, "__name__", "") == f"{package}.{name}"
        }
        return sorted(shown | home.keys())

    return names
