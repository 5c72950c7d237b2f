"""Formats numbers for people: three digits and a unit."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from umstack.facts.sessions import parts_of
from umstack.foreign_text import displayed


def count(value: float | None) -> str:
    """Format a whole number in groups of three digits."""
    return "-" if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """Format a fraction as a percentage."""
    if value is None:
        return "-"
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.2g} %"


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for size, unit in steps:
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}" if abs(value) / size < 1000 else f"{value / size:,.0f} {unit}"
    return f"{value:.3g} {steps[-1][1]}"


def duration(value_ns: float | None) -> str:
    """Format nanoseconds in the unit that fits."""
    if value_ns is None:
        return "-"
    return _scaled(value_ns, ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")))


def volume(value: float | None) -> str:
    """Format bytes in the unit that fits."""
    return "-" if value is None else _scaled(value, ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))


def bit_rate(bytes_per_second: float | None) -> str:
    """Format bytes per second as bits per second."""
    if bytes_per_second is None:
        return "-"
    return _scaled(8 * bytes_per_second, ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1, "bit/s")))


def moment(time_ns: int | None) -> str:
    """Format the date and time of day in UTC."""
    if time_ns is None:
        return "-"
    whole = datetime.datetime.fromtimestamp(time_ns // 1_000_000_000, datetime.UTC)
    return f"{whole:%Y-%m-%d %H:%M:%S}.{time_ns % 1_000_000_000 // 1000:06d}"


def several(names: Sequence[str], most: int) -> str:
    """Return the first `most` names and the number of others."""
    more = f" and {count(len(names) - most)} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


_NAMED = 2


def session_name(row: Mapping[str, Any]) -> str:
    """Return a session's topics, if known, its folders, and its numbers."""
    name = session_number(row)
    known = [displayed(topic) for topic in row.get("topics") or ()]
    parts = [several(known, _NAMED)] if known else []
    if row.get("folders"):
        parts.append(f"[{', '.join(map(displayed, row['folders']))}]")
    return f"{' '.join(parts)} ({name})" if parts else name


def session_number(row: Mapping[str, Any]) -> str:
    """Format a session as publisher and session id, or port if it has no id (umstack.facts.sessions)."""
    number = row.get("session_id")
    if isinstance(number, int) and number < 0:
        return f"{row.get('publisher')}:{-number}"
    if not isinstance(number, int):
        return str(row.get("publisher"))
    session_id, port = parts_of(number)
    return f"{row.get('publisher')}{f':{port}' if port else ''} / {session_id:08x}"
