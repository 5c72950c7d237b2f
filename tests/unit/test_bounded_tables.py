"""docs/bounded-tables.md lists every table that is declared in the core and in the Python layers below the commands."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from umstack.recovery.service import WARNED_TOPICS_MAX, RecoveryService

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "bounded-tables.md").read_text()
LAYERS = (
    *("resolution", "recovery", "requests", "streams", "_engine", "recorder", "driver", "driving", "files"),
    *("store/repository", "store/wire", "store/protocol", "persistence"),
)
MODULES = (
    *("context.py", "wildcard_receiver.py", "hot_failover_receiver.py", "repeated_records.py"),
    *("error_log.py", "telemetry/exporter_text.py", "telemetry/http_server.py", "telemetry/serving.py"),
    *("telemetry/counter_log.py", "monitor/finding_metrics.py", "monitor/sinks.py"),
    *(
        "persistent_source.py",
        "store/client.py",
        "store/server.py",
        "store/connections.py",
        "store/commits.py",
    ),
)
CONTAINER = re.compile(r"self\.(\w+): (?:dict|set|list|deque|OrderedDict|defaultdict|Counter)\[")
ARRAY = re.compile(r"^ +\w[^(){}=;]*\[[^\]]*\b(UM_\w+_(?:MAX|LOG2))\]", re.MULTILINE)
CAPACITY = re.compile(r"^ +uint32_t \w*capacity\w*;", re.MULTILINE)


def _python_files() -> list[Path]:
    files = [file for layer in LAYERS for file in sorted((ROOT / "umstack" / layer).glob("*.py"))]
    return [*files, *(ROOT / "umstack" / name for name in MODULES)]


def _headers() -> list[Path]:
    folders = ("core", "io", "authentication")
    return [file for folder in folders for file in sorted((ROOT / "ffi" / folder).rglob("*.h"))]


def _listed_attributes() -> set[tuple[str, str]]:
    """The pairs of module and attribute on the page: a module's name applies to the names that follow it."""
    pairs, module = set(), ""
    for name in re.findall(r"`(\w+(?:\.py)?)`", re.sub(r"`tests/[^`]*`", "", PAGE)):
        if name.endswith(".py"):
            module = name
        else:
            pairs.add((module, name))
    return pairs


def test_every_container_of_python_is_listed() -> None:
    """One that outside events fill needs a bound; the reason of any other is given."""
    declared = {(file.name, name) for file in _python_files() for name in CONTAINER.findall(file.read_text())}
    assert len(declared) > 50
    assert sorted(declared - _listed_attributes()) == []


def test_every_array_of_the_core_is_listed() -> None:
    """By the constant that is its size, or by the header that declares its capacity."""
    constants = {(file.name, name) for file in _headers() for name in ARRAY.findall(file.read_text())}
    capacities = {file.name for file in _headers() if CAPACITY.search(file.read_text())}
    assert len(constants) > 25
    assert len(capacities) > 10
    named = set(re.findall(r"UM_\w+", PAGE))
    assert sorted(name for _, name in constants if name not in named) == []
    assert sorted(name for name in capacities if not re.search(rf"capacity of [^|`]*\b{name}", PAGE)) == []


def test_the_listed_tables_and_tests_exist() -> None:
    """A table that is gone leaves the page, too."""
    sources: dict[str, str] = {}
    for file in _python_files():
        sources[file.name] = sources.get(file.name, "") + file.read_text()
    gone = [
        (m, n) for m, n in _listed_attributes() if m in sources and n.startswith("_") and n not in sources[m]
    ]
    assert gone == []
    headers = "".join(file.read_text() for file in _headers())
    assert [name for name in re.findall(r"`(UM_\w+)`", PAGE) if name not in headers] == []
    assert [name for name in re.findall(r"`(tests/[^`]+)`", PAGE) if not (ROOT / name).exists()] == []


def test_warnings_of_recoveries_are_remembered_for_some_topics_only() -> None:
    """Topics of a wildcard receiver come from advertisements."""
    service = RecoveryService.__new__(RecoveryService)
    service._warned_ns = {}
    options = SimpleNamespace(otr_request_log_alert_cooldown_ns=10**12)
    for number in range(2 * WARNED_TOPICS_MAX):
        subscription = SimpleNamespace(topic=f"t{number}", options=options)
        assert service._is_warning_due(cast(Any, subscription), 1)
        assert not service._is_warning_due(cast(Any, subscription), 2)
    assert len(service._warned_ns) == WARNED_TOPICS_MAX


def test_the_series_of_a_monitor_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures decide how many sessions there are: the series set longest ago goes, counters as well as gauges."""
    metrics = pytest.importorskip("umstack.monitor.finding_metrics")
    prometheus = pytest.importorskip("prometheus_client")
    monkeypatch.setattr(metrics, "SERIES_MAX", 3)
    sink = metrics.FindingMetrics()
    row = {
        "publisher": "10.0.0.1",
        "receiver": "",
        "datagrams": 1,
        "point": "",
        "kind": "bad",
        "status": "lost",
    }
    for number in range(1, 6):
        again = {**row, "from": 10, "session_id": 5}
        sink.take("traffic", [{**row, "from": number, "session_id": number}, again], 1.0)
    sink.take("remarks", [{**row, "from": 11, "packets": 1}], 1.0)
    text = prometheus.generate_latest(sink._registry).decode()
    shown = [number for number in range(1, 6) if f'session="0000000{number}"' in text]
    assert shown == [4, 5]
    assert 'umstack_remarks_total{kind="bad"' in text
    assert len(sink._latest) == 3


def test_the_suggestions_that_a_monitor_remembers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one shown longest ago is forgotten, and would be shown again."""
    sinks = pytest.importorskip("umstack.monitor.sinks")
    monkeypatch.setattr(sinks, "SUGGESTIONS_MAX", 3)
    lines = sinks.Lines(print)
    rows = [
        {"publisher": "10.0.0.1", "session_id": number, "option": "window", "value": 8} for number in range(5)
    ]
    assert [lines._is_new(row) for row in rows] == [True] * 5
    assert len(lines._suggested) == 3
    assert not lines._is_new(rows[4])
    assert lines._is_new(rows[0])
