"""A Grafana dashboard made from the counter schema: `umstack exporter --print dashboard`.

The first row has the most important panels; below it is a collapsed row for each group of the schema with a panel for
every counter.
"""

from __future__ import annotations

import json
from typing import Any

from umstack.telemetry.alerts import in_promql
from umstack.telemetry.counters import CounterKind, schema
from umstack.telemetry.exporter_text import (
    COMMIT_SECONDS,
    GROUPS,
    LATENCY_SECONDS,
    RECOVERY_SECONDS,
    Metric,
    metrics_of,
)

_SCHEMA_VERSION = 39
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_RATE = "rate({}[$__rate_interval])"
_GRAFANA_UNITS = {"bytes": "bytes", "ms": "s"}

_FIRST: tuple[tuple[str, str, str, str], ...] = (
    (
        "Messages sent per second",
        f"sum by (topic) ({_RATE.format('{source.messages_sent}')})",
        "{{topic}}",
        "short",
    ),
    (
        "Messages delivered per second",
        f"sum by (topic) ({_RATE.format('{receiver.messages_delivered}')})",
        "{{topic}}",
        "short",
    ),
    (
        "Datagrams lost, share of those received",
        f"{_RATE.format('{receiver_transport.lost}')} / {_RATE.format('{receiver_transport.msgs_rcved}')}",
        "{{transport}}",
        "percentunit",
    ),
    (
        "Unrecovered datagrams per second",
        f"{_RATE.format('{receiver_transport.unrecovered_txw}')} + "
        f"{_RATE.format('{receiver_transport.unrecovered_tmo}')}",
        "{{transport}}",
        "short",
    ),
    ("NAKs received per second", _RATE.format("{source_transport.naks_rcved}"), "{{transport}}", "short"),
    ("Retransmissions per second", _RATE.format("{source_transport.rxs_sent}"), "{{transport}}", "short"),
    (
        "Publication window used",
        "({source_transport.pub_pos} - {source_transport.snd_pos}) / "
        "({source_transport.pub_lmt} - {source_transport.snd_pos})",
        "{{transport}}",
        "percentunit",
    ),
    ("Queued messages", "{receiver.queued_messages}", "{{topic}}", "short"),
)


def _panel(
    number: int, title: str, text: str, expression: str, legend: str, unit: str, top: int
) -> dict[str, Any]:
    position = number % _COLUMNS
    return {
        "type": "timeseries",
        "title": title,
        "description": text,
        "datasource": _SOURCE,
        "gridPos": {
            "x": position * _WIDTH,
            "y": top + number // _COLUMNS * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"expr": expression, "legendFormat": legend, "refId": "A", "datasource": _SOURCE}],
    }


def _of_metric(number: int, metric: Metric, legend: str, top: int) -> dict[str, Any]:
    grows = metric.counter.kind is CounterKind.COUNTER
    selected = f'{metric.name}{{instance=~"$instance"}}'
    unit = _GRAFANA_UNITS.get(metric.counter.unit, "short")
    return _panel(
        number,
        f"{metric.counter.name}{' per second' if grows else ''}",
        metric.help,
        _RATE.format(selected) if grows else selected,
        legend,
        "Bps" if grows and unit == "bytes" else unit,
        top,
    )


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's import format."""
    panels: list[dict[str, Any]] = []
    for number, (title, expression, legend, unit) in enumerate(_FIRST):
        panels.append(_panel(number, title, "", in_promql(expression), legend, unit, 0))
    for title, metric, label in (
        ("Recovery time", RECOVERY_SECONDS, "transport"),
        ("One-way latency", LATENCY_SECONDS, "transport"),
        ("Commit time of a Store", COMMIT_SECONDS, "store"),
    ):
        quantile = f"histogram_quantile(0.99, sum by ({label}, le) ({_RATE.format(f'{metric}_bucket')}))"
        legend = f"{{{{{label}}}}}"
        panels.append(_panel(len(panels), f"{title}, 99th percentile", "", quantile, legend, "s", 0))
    top = (len(panels) + _COLUMNS - 1) // _COLUMNS * _HEIGHT
    for group in GROUPS:
        legend = " ".join(f"{{{{{label}}}}}" for label in (group.labels or ("interface", "pid")))
        inside = [
            _of_metric(number, metric, legend, top + 1)
            for number, metric in enumerate(metrics_of(group.name))
        ]
        panels.append(
            {
                "type": "row",
                "title": f"{group.name}: {schema().group(group.name).doc}",
                "collapsed": True,
                "gridPos": {"x": 0, "y": top, "w": _WIDTH * _COLUMNS, "h": 1},
                "panels": inside,
            }
        )
        top += 1
    inner = [one for panel in panels for one in (panel, *panel.get("panels", ()))]
    for number, one in enumerate(inner, 1):
        one["id"] = number
    instance_query = "label_values(umstack_context_info, instance)"
    return {
        "title": "umstack",
        "uid": "umstack",
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": {"query": instance_query, "refId": "instances"},
                    "definition": instance_query,
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                    "refresh": 2,
                },
            ]
        },
        "panels": panels,
    }


def render_dashboard() -> str:
    """Return the text of the dashboard's file."""
    return json.dumps(dashboard(), indent=1, sort_keys=True) + "\n"
