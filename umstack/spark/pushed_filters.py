"""Splits a query's filters into those that the decoder applies and those left to Spark.

The decoder applies comparisons with constants exactly for time (`time_ns`, `timestamp`), `session_id`, `packet_type`
and `destination_address`. All other filters are left to Spark.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from umstack.capture.selection import TYPES, VALUES_MAX, Selection

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US_NS = 1000
_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"


def spark_pushes_filters(modules: Iterable[str]) -> bool:
    """Return true if this process plans a read for a query whose filters Spark pushes to the source.

    Spark refuses a reader that takes filters unless `spark.sql.python.filterPushdown.enabled` is set, even for a query
    without filters. It plans with filters in a special process, which is recognized by the module it runs.
    """
    return _PLANNER in modules


def push(selection: Selection, filters: Iterable[Filter]) -> tuple[Selection, list[Filter]]:
    """Return the selection narrowed by the filters that it can express, and the filters left to Spark."""
    left = []
    for one in filters:
        taken = _taken(selection, one)
        if taken is None:
            left.append(one)
        else:
            selection = taken
    return selection, left


def _taken(selection: Selection, one: Filter) -> Selection | None:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    take = _TAKE.get(attribute[0]) if len(attribute) == 1 else None
    return None if take is None else take(selection, one)


def _take_time_ns(selection: Selection, one: Filter) -> Selection | None:
    return _take_range(selection, one, lambda value: value if type(value) is int else None, 1)


def _take_timestamp(selection: Selection, one: Filter) -> Selection | None:
    def first_ns(value: Any) -> int | None:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return (value - _EPOCH) // timedelta(microseconds=1) * _US_NS

    return _take_range(selection, one, first_ns, _US_NS)


def _take_range(
    selection: Selection, one: Filter, first_ns: Callable[[Any], int | None], width_ns: int
) -> Selection | None:
    """Narrow the time range; a value of the column covers `width_ns` from its `first_ns` on."""
    if isinstance(one, IsNotNull):
        return replace(selection, is_timed=True)
    if not isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    first = first_ns(one.value)
    if first is None:
        return None
    low, high = selection.time_low_ns, selection.time_high_ns
    if isinstance(one, EqualTo | GreaterThanOrEqual):
        low = max(low, first)
    if isinstance(one, GreaterThan):
        low = max(low, first + width_ns)
    if isinstance(one, EqualTo | LessThanOrEqual):
        high = min(high, first + width_ns - 1)
    if isinstance(one, LessThan):
        high = min(high, first - 1)
    return replace(selection, time_low_ns=low, time_high_ns=high, is_timed=True)


def _values(one: Filter) -> list[Any] | None:
    if isinstance(one, EqualTo):
        return [one.value]
    return list(one.value) if isinstance(one, In) else None


def _both(before: frozenset[Any] | None, wanted: Iterator[Any]) -> frozenset[Any]:
    found = frozenset(wanted)
    return found if before is None else before & found


def _take_session(selection: Selection, one: Filter) -> Selection | None:
    values = _values(one)
    if values is None or not all(type(value) is int for value in values):
        return None
    sessions = _both(selection.sessions, (value for value in values if 0 <= value < 2**32))
    return replace(selection, sessions=sessions) if len(sessions) <= VALUES_MAX else None


def _take_type(selection: Selection, one: Filter) -> Selection | None:
    if isinstance(one, IsNotNull):
        return replace(selection, types=_both(selection.types, iter(TYPES)))
    values = _values(one)
    if values is None or not all(isinstance(value, str) for value in values):
        return None
    return replace(selection, types=_both(selection.types, (value for value in values if value in TYPES)))


def _take_destination(selection: Selection, one: Filter) -> Selection | None:
    values = _values(one)
    if values is None or not all(isinstance(value, str) and _is_address(value) for value in values):
        return None
    destinations = _both(selection.destinations, iter(values))
    return replace(selection, destinations=destinations) if len(destinations) <= VALUES_MAX else None


def _is_address(text: str) -> bool:
    """Return true if the column can contain this text: it writes IPv4-mapped IPv6 addresses in another form."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.version == 4 and str(address) == text


_TAKE: dict[str, Callable[[Selection, Filter], Selection | None]] = {
    "time_ns": _take_time_ns,
    "timestamp": _take_timestamp,
    "session_id": _take_session,
    "packet_type": _take_type,
    "destination_address": _take_destination,
}
