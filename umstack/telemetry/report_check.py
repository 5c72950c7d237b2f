"""Checks the report of a process before it is used.

Any process that can bind a socket in the statistics directory can send anything. A report is accepted only if it has
the structure that `Context.stats()` returns, every figure is a finite number, and process and context match the
socket's name. Its texts remain foreign text (umstack.foreign_text).
"""

from __future__ import annotations

from typing import Any

from umstack._core import lib
from umstack.telemetry.time_histogram import HISTOGRAMS

_OBJECTS_MAX = 1_000_000
_TEXT_MAX = 65536
_BUCKETS = {f"{one.NAME}_counts": one.BUCKETS for one in HISTOGRAMS}
_TABLES = ("context", "link_counters")
_LISTS = {
    "source_transports": ("transport",),
    "receiver_transports": ("transport",),
    "sources": ("topic", "transport"),
    "receivers": ("topic",),
    "event_queues": ("queue",),
    "hot_failover": ("queue",),
    "stores": ("store",),
    "errors": ("logger", "subject", "text"),
}
_NEW_LISTS = ("event_queues", "hot_failover", "stores", "errors")
"""Lists that a process of an earlier version does not have."""


class BadReport(ValueError):
    """The data read is not a valid report of that context."""


def checked_report(report: Any, pid: int, number: int) -> dict[str, Any]:
    """Return the report if it is valid; otherwise raise BadReport with the reason."""
    if not isinstance(report, dict):
        raise BadReport("no object")
    if _field(report, "pid") != pid or _field(report, "number") != number:
        raise BadReport("process or context differs from the socket's name")
    for name in ("started_at", "read_at", "datagram_bytes"):
        _figure(name, _field(report, name))
    for name in ("command", "interface", "link"):
        _text(name, _field(report, name))
    _text("driver", report.setdefault("driver", "none"))
    _clock(report.get("clock"))
    _resolution(report.get("resolution"))
    for name in _TABLES:
        _figures(name, _field(report, name), ())
    for name in _NEW_LISTS:
        report.setdefault(name, [])
    for name, texts in _LISTS.items():
        listed = _field(report, name)
        if not isinstance(listed, list) or len(listed) > _OBJECTS_MAX:
            raise BadReport(f"{name} is no list of objects")
        for item in listed:
            _figures(name, item, texts)
    return report


def _field(report: dict[str, Any], name: str) -> Any:
    if name not in report:
        raise BadReport(f"no {name}")
    return report[name]


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > _TEXT_MAX:
        raise BadReport(f"{name} is no text")


def _texts(name: str, value: Any) -> None:
    if not isinstance(value, list) or len(value) > _OBJECTS_MAX:
        raise BadReport(f"{name} is no list")
    for one in value:
        _text(name, one)


def _figure(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadReport(f"{name} is no figure")
    if not -(2.0**64) <= value <= 2.0**64:  # which also rejects NaN
        raise BadReport(f"{name} is out of range")


def _figures(name: str, item: Any, texts: tuple[str, ...]) -> None:
    """Check one object: its identifying texts, and its figures or None."""
    if not isinstance(item, dict):
        raise BadReport(f"{name} is no object")
    for text in texts:
        _text(f"{name}.{text}", _field(item, text))
    for key, value in item.items():
        if key in _BUCKETS:
            _buckets(key, value)
        elif key == "nak_accounts":
            _accounts(value)
        elif key == "transports":
            _texts(f"{name}.{key}", value)
        elif key not in texts and key != "transport" and value is not None:
            _figure(f"{name}.{key}", value)


def _clock(value: Any) -> None:
    """Check the state of the host's clock; None if the process reports none."""
    if value is None:
        return
    if not isinstance(value, dict) or not isinstance(value.get("synchronized"), bool | None):
        raise BadReport("clock is no clock")
    for name in ("max_error_ns", "estimated_error_ns"):
        if value.get(name) is not None:
            _figure(f"clock.{name}", value[name])


def _resolution(value: Any) -> None:
    """Check the topic resolution of the context; None from a process of an earlier version."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise BadReport("resolution is no object")
    for name in ("by", "sends_to", "listens_to"):
        _text(f"resolution.{name}", value.get(name, ""))
    for name in ("advertised", "queried", "unresolved", "patterns"):
        _texts(f"resolution.{name}", value.get(name, []))
    daemons = value.get("daemons", [])
    if not isinstance(daemons, list) or len(daemons) > _OBJECTS_MAX:
        raise BadReport("resolution.daemons is no list")
    for daemon in daemons:
        if not isinstance(daemon, dict):
            raise BadReport("resolution.daemons has no object")
        _text("resolution.daemons.address", _field(daemon, "address"))


def _accounts(value: Any) -> None:
    if not isinstance(value, list) or len(value) > lib.UM_ACCOUNTS_MAX:
        raise BadReport("nak_accounts is no list of receivers")
    for account in value:
        _figures("nak_accounts", account, ("receiver",))


def _buckets(key: str, value: Any) -> None:
    if not isinstance(value, list) or len(value) != _BUCKETS[key]:
        raise BadReport(f"{key} is no histogram")
    for count in value:
        _figure(key, count)
