"""Keyword arguments of a context's calls: which belong to which scope, and short forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umstack.config import OPTIONS, Scope


def of_scope(scope: Scope, options: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of this scope from `options` and return them."""
    return {name: options.pop(name) for name in list(options) if name in OPTIONS[scope]}


def conflating(options: Mapping[str, Any], conflate: bool) -> dict[str, Any]:
    """Return the options with the one that `conflate` stands for."""
    return {**options, "receiver_full_queue": "conflate"} if conflate else {**options}


__all__ = ["conflating", "of_scope"]
