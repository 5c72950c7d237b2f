"""Counter files, which any process of the user may have written: they are read or refused, and accepted reports can be
shown by everything that shows reports.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from typing import Any

from json_input import changed_json

from umstack._core import lib
from umstack.telemetry.counter_file import (
    _SLOTS_AT,
    BadCounterFile,
    newest_text,
)
from umstack.telemetry.counters import schema
from umstack.telemetry.exporter_text import Exposition, render
from umstack.telemetry.live_rows import live_rows
from umstack.telemetry.report_check import BadReport, checked_report

INSTRUMENTED = ("umstack.telemetry", "umstack.foreign_text")
PID, NUMBER = 1, 0


def _figures(group: str) -> dict[str, int]:
    return {counter.name: number for number, counter in enumerate(schema().group(group).counters)}


def _report() -> dict[str, Any]:
    """Return the report of a context with two sources and two receivers."""
    sending = {
        "transport": "a",
        "nak_accounts": [{"receiver": "10.0.0.2", "naks": 3}],
        **_figures("source_transport"),
    }
    receiving = {
        "transport": "a",
        "recovery_counts": [1] * lib.UM_RECOVERY_BUCKETS,
        **_figures("receiver_transport"),
    }
    return {
        "pid": PID,
        "number": NUMBER,
        "started_at": 1.0,
        "read_at": 2.0,
        "command": "python3 -m app",
        "interface": "eth1",
        "link": "socket",
        "datagram_bytes": 1472,
        "context": _figures("context"),
        "link_counters": _figures("link"),
        "source_transports": [sending, sending | {"transport": "b"}, sending | {"transport": "c"}],
        "receiver_transports": [receiving, receiving | {"transport": "b"}, receiving | {"transport": "c"}],
        "sources": [{"topic": name, "transport": "a", **_figures("source")} for name in "xyz"],
        "receivers": [{"topic": name, **_figures("receiver")} for name in "xyz"],
        "event_queues": [{"queue": name, **_figures("event_queue")} for name in "xyz"],
        "hot_failover": [{"queue": name, **_figures("hot_failover")} for name in "xyz"],
    }


_MESSAGES = [_report()]
checked_report(json.loads(json.dumps(_MESSAGES[0])), PID, NUMBER)  # else every input would be refused


def _text_of(data: bytes) -> bytes:
    """Return the text in a file with this content at its beginning and at the slots."""
    with tempfile.TemporaryFile() as file:
        for at in (0, *_SLOTS_AT):
            os.pwrite(file.fileno(), data, at)
        return newest_text(file.fileno())


def one_input(data: bytes) -> None:
    """Read one file, check one report, and show it as `umstack stat`, `top` and the exporter do."""
    with contextlib.suppress(BadCounterFile):
        _text_of(data)
    try:
        report = checked_report(json.loads(changed_json(data, _MESSAGES)), PID, NUMBER)
    except (BadReport, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        return
    json.dumps(live_rows([report], []).as_json())
    json.dumps(live_rows([report], [report]).as_json())
    text = render(Exposition(topics_max=2, sessions_max=2).families([report]))
    for line in text.splitlines():
        assert line.startswith(("#", "umstack_")), line
