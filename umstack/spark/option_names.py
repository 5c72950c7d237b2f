"""Names of a data source's options: one that the source does not have is refused, and not passed over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def unknown_options(given: Mapping[str, str], known: Iterable[str]) -> list[str]:
    """Return the given names that are not options, sorted. Names are case-insensitive, as everywhere in Spark."""
    lowered = {name.lower() for name in known}
    return sorted(name for name in given if name.lower() not in lowered)
