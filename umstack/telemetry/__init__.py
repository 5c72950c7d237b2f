"""Telemetry: the counter schema, reading counters, and exporting them to other processes and to Prometheus.

The schema defines the name, unit and meaning of each counter; nothing here defines them again.
"""

from __future__ import annotations

from umstack.telemetry.serving import ServedMetrics, serve_metrics

__all__ = ["ServedMetrics", "serve_metrics"]
