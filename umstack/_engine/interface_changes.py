"""The kinds of changes of an interface, and their numbers in the core's events."""

from __future__ import annotations

INTERFACE_CHANGES = ("gone", "returned", "made_again", "renamed", "address_changed", "address_removed")
"""The values of InterfaceChanged.change."""


def interface_change_number(change: str, is_followed: bool) -> int:
    """Encode a change, and whether everything of the context uses the changed interface."""
    return INTERFACE_CHANGES.index(change) << 1 | is_followed


def interface_change_of(number: int) -> tuple[str, bool]:
    """Decode interface_change_number()."""
    return INTERFACE_CHANGES[number >> 1], bool(number & 1)
